"""`vidc run`: generates a video with a bundle."""

import sys
import warnings
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from vidc.compiler.cli.controls import Controls, open_controls
from vidc.compiler.cli.group import Command
from vidc.compiler.cli.images import ImageOptions, clips, image_options
from vidc.compiler.cli.output import json_option, print_json, print_text
from vidc.plugins.errors import UsageError, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from torch import Tensor

    from vidc.runtime.programs.base import Session
    from vidc.runtime.programs.spec import ProgramSpec

_PATH = click.Path(path_type=Path)


@click.command(cls=Command)
@click.argument("bundle", type=_PATH)
@click.option("--prompt", help="Text of the prompt.")
@click.option(
    "--prompt-embeds", type=_PATH, help="Text embeddings (.safetensors) in place of --prompt."
)
@click.option(
    "--switch",
    "switches",
    multiple=True,
    metavar="BLOCK:PROMPT",
    help="New prompt from this block on, counted from 0.",
)
@click.option(
    "--switch-embeds", multiple=True, metavar="BLOCK:FILE", help="As --switch, with embeddings."
)
@click.option(
    "--actions",
    type=_PATH,
    metavar="FILE",
    help="Actions of a world model, a row for each frame: .npy, or .csv with commas.",
)
@click.option(
    "--start",
    type=_PATH,
    metavar="PATH",
    help="What a world model starts from: a folder with low_res.npy, full_res.npy and act.npy, or "
    "an image.",
)
@click.option(
    "--blocks", type=click.IntRange(min=1), help="Length in blocks.  [default: 8; 1 of an image]"
)
@click.option(
    "--frames", type=click.IntRange(min=1), help="Length in frames, in place of --blocks."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--fps", type=click.IntRange(min=1), help="Frames a second.  [default: 16; 7 of an image]"
)
@image_options
@click.option(
    "-o", "--output", type=_PATH, default=Path("out.mp4"), show_default=True,
    help="An .mp4, .webp or .gif file; a batch gets one numbered file per video.",
)  # fmt: skip
@json_option
def command(
    bundle: Path,
    prompt: str | None,
    prompt_embeds: Path | None,
    switches: tuple[str, ...],
    switch_embeds: tuple[str, ...],
    actions: Path | None,
    start: Path | None,
    blocks: int | None,
    frames: int | None,
    seed: int,
    fps: int | None,
    images: ImageOptions,
    output: Path,
    as_json: bool,
) -> None:
    """Generate a video with a bundle."""
    from vidc.runtime.bundle import load
    from vidc.runtime.manifest import read_manifest
    from vidc.runtime.video import open_writer

    # Refuses invalid options before engines are loaded.
    spec = read_manifest(bundle).spec
    world = open_controls(bundle, spec, actions, start)
    blocks = _blocks_of(blocks, frames, world.rows, spec)
    fps = fps or spec.default_fps
    condition = images.read(bundle, spec, partial(_embeds, spec=spec))
    prompts = {}
    if spec.prompt_shape:
        prompts[0] = _prompt(prompt, prompt_embeds, spec)
        prompts |= _switches(switches, switch_embeds, blocks, spec)
    elif prompt or prompt_embeds or switches or switch_embeds:
        raise UsageError(
            "VIDC-PROMPT-UNUSED", f"{bundle} takes no prompts, and one is given",
            "leave --prompt, --prompt-embeds and the switches out",
        )  # fmt: skip
    with ExitStack() as stack:
        outputs = _outputs(output, spec.videos)
        writers = [stack.enter_context(open_writer(path, fps=fps)) for path in outputs]
        loaded = stack.enter_context(load(bundle))
        for note in loaded.notes:
            click.echo(note, err=True)
        session = stack.enter_context(loaded.session(seed=seed))
        with warnings.catch_warnings(record=True) as cut:
            warnings.simplefilter("always")
            embeds = {block: session.embeds(given) for block, given in prompts.items()}
        for warning in cut:
            click.echo(printable(f"warning: {warning.message}"), err=True)
        if embeds:
            session.prompt(embeds[0])
        if condition:
            session.condition(**condition, fps=fps)
        world.begin(session)
        steps = spec.steps if condition else 1
        label = "steps" if condition else "blocks"
        bar = stack.enter_context(
            click.progressbar(length=blocks * steps, label=label, file=sys.stderr)
        )
        tick = partial(bar.update, 1)
        played = (
            clips(session, blocks, tick) if condition else _blocks(session, blocks, embeds, world)
        )
        for fetched in played:
            made = fetched()
            videos = [made] if spec.videos == 1 else made
            for writer, video in zip(writers, videos, strict=True):
                writer.write(video if frames is None else video[: frames - writer.count])
            if not condition:
                tick()
    count, encoder = writers[0].count, writers[0].encoder
    if as_json:
        document = {"outputs": [str(path) for path in outputs], "frames": count}
        print_json(document | {"encoder": encoder})
    else:
        print_text("\n".join(f"{path}: {count} frames" for path in outputs))


def _blocks(
    session: "Session[Any]", blocks: int, switches: "Mapping[int, Tensor]", world: Controls
) -> "Iterator[Callable[[], Tensor]]":
    """Yields each block's frames once the next block is queued on the device."""
    before = None
    for block in range(blocks):
        if block > 0 and block in switches:
            session.switch_prompt(switches[block])
        world.act(session, block)
        fetched = session.fetch(session.step())
        if before is not None:
            yield before
        before = fetched
    if before is not None:
        yield before


def _blocks_of(
    blocks: int | None, frames: int | None, rows: int | None, spec: "ProgramSpec"
) -> int:
    """Returns the number of blocks to generate: asked for, one an action, or the program's.

    Raises:
        UsageError: ``VIDC-RUN-LENGTH``, both lengths are given, or there are fewer actions.
    """
    if blocks is not None and frames is not None:
        raise UsageError(
            "VIDC-RUN-LENGTH", "--blocks and --frames are given for one video", "give one of them"
        )
    if frames is not None:
        blocks = -(-frames // spec.video_frames)
    if rows is None:
        return blocks or spec.default_blocks
    if blocks is not None and blocks > rows:
        raise UsageError(
            "VIDC-RUN-LENGTH",
            f"{blocks} frames are asked for, and there are actions for {rows}",
            f"ask for at most --frames {rows}, or record more actions",
        )
    return blocks or rows


def _outputs(output: Path, batch: int) -> list[Path]:
    """Returns a file for each video of a batch, such as ``out-0.mp4`` and ``out-1.mp4``."""
    if batch == 1:
        return [output]
    return [output.with_stem(f"{output.stem}-{index}") for index in range(batch)]


def _prompt(text: str | None, embeds: Path | None, spec: "ProgramSpec") -> "Tensor | str":
    if (text is None) == (embeds is None):
        raise UsageError(
            "VIDC-PROMPT-NONE",
            "give one prompt" if text is None else "two prompts are given for one stream",
            '--prompt "..." for a bundle with a text encoder, or --prompt-embeds FILE',
        )
    return text if text is not None else _embeds(embeds or Path(), spec)


def _switches(
    texts: tuple[str, ...], files: tuple[str, ...], blocks: int, spec: "ProgramSpec"
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
        if int(number) in found:
            raise UsageError(
                "VIDC-PROMPT-SWITCH",
                f"the prompt is switched twice at block {int(number)}",
                "give each block one --switch or --switch-embeds",
            )
        found[int(number)] = _embeds(Path(value), spec) if is_file else value
    return found


def _embeds(path: Path, spec: "ProgramSpec") -> "Tensor":
    """Returns the only tensor of a safetensors file, with a batch dimension."""
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
    return tensor.expand(spec.videos, *tensor.shape) if tensor.ndim == 2 else tensor
