"""`vidc run`: a video from a bundle and a prompt."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vidc.compiler.cli.output import json_option, print_json, print_text
from vidc.plugins.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.runtime.stream import StreamSpec

_PATH = click.Path(path_type=Path)


@click.command()
@click.argument("bundle", type=_PATH)
@click.option("--prompt", help="What the video shows.")
@click.option("--prompt-embeds", type=_PATH, help="Text embeddings instead, .safetensors.")
@click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="BLOCK:PROMPT",
    help="A new prompt from BLOCK on, counted from 0.",
)
@click.option(
    "--switch-embeds", multiple=True, metavar="BLOCK:FILE", help="The same with embeddings."
)
@click.option("--blocks", type=click.IntRange(min=1), default=8, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--fps", type=click.IntRange(min=1), default=16, show_default=True)
@click.option(
    "-o", "--output", type=_PATH, default=Path("out.mp4"), show_default=True,
    help="An .mp4, .webp or .gif file.",
)  # fmt: skip
@json_option
def command(
    bundle: Path,
    prompt: str | None,
    prompt_embeds: Path | None,
    switches: tuple[str, ...],
    switch_embeds: tuple[str, ...],
    blocks: int,
    seed: int,
    fps: int,
    output: Path,
    as_json: bool,
) -> None:
    """Generate a video with a bundle."""
    from vidc.runtime.bundle import load
    from vidc.runtime.video import open_writer

    loaded = load(bundle)
    for note in loaded.notes:
        click.echo(note, err=True)
    first = _prompt(prompt, prompt_embeds, loaded.stream)
    later = _switches(switches, switch_embeds, blocks, loaded.stream)
    session = loaded.session(seed=seed)
    session.prompt(first)
    with (
        open_writer(output, fps=fps) as writer,
        click.progressbar(length=blocks, label="blocks", file=sys.stderr) as bar,
    ):
        for block in range(blocks):
            if block in later:
                session.switch_prompt(later[block])
            frames = session.step()
            writer.write(frames if loaded.stream.batch == 1 else frames[0])
            bar.update(1)
    document = {"output": str(output), "frames": writer.count, "encoder": writer.encoder}
    if as_json:
        print_json(document)
    else:
        print_text(f"{output}: {writer.count} frames")


def _prompt(text: str | None, embeds: Path | None, stream: "StreamSpec") -> "Tensor | str":
    if (text is None) == (embeds is None):
        raise UsageError(
            "VIDC-PROMPT-NONE",
            "give one prompt" if text is None else "two prompts are given for one stream",
            '--prompt "..." for a bundle with a text encoder, or --prompt-embeds FILE',
        )
    return text if text is not None else _embeds(embeds or Path(), stream)


def _switches(
    texts: tuple[str, ...], files: tuple[str, ...], blocks: int, stream: "StreamSpec"
) -> dict[int, "Tensor | str"]:
    found: dict[int, Tensor | str] = {}
    for given, is_file in [*((t, False) for t in texts), *((f, True) for f in files)]:
        number, colon, value = given.partition(":")
        if not colon or not number.isdecimal() or not 0 < int(number) < blocks:
            raise UsageError(
                "VIDC-PROMPT-SWITCH",
                f"{given!r} is not BLOCK:PROMPT with a block from 1 to {blocks - 1}",
                'such as --switch 4:"the same street at night"',
            )
        found[int(number)] = _embeds(Path(value), stream) if is_file else value
    return found


def _embeds(path: Path, stream: "StreamSpec") -> "Tensor":
    """The one tensor of a safetensors file, with a batch dimension."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as error:
        raise UsageError(
            "VIDC-PROMPT-FILE", f"{path} cannot be read as embeddings: {error}",
            "save one tensor [L, E] with safetensors.torch.save_file",
        ) from error  # fmt: skip
    if len(tensors) != 1:
        raise UsageError(
            "VIDC-PROMPT-FILE",
            f"{path} holds {len(tensors)} tensors ({', '.join(sorted(tensors)[:4])})",
            "save one tensor [L, E] alone",
        )
    (tensor,) = tensors.values()
    return tensor.expand(stream.batch, *tensor.shape) if tensor.ndim == 2 else tensor
