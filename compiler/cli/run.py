"""`vidc run`: generates a video with a bundle."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from vidc.compiler.cli.controls import ControlOptions
from vidc.compiler.cli.group import PATH, Command, bundle_argument, taken
from vidc.compiler.cli.images import ImageOptions, clips
from vidc.compiler.cli.output import json_option, print_json, print_text
from vidc.compiler.cli.prompts import PromptOptions
from vidc.plugins.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

    from vidc.runtime.programs.base import Session
    from vidc.runtime.programs.spec import ProgramSpec


class Clock:
    """Measures the time to the first frames, and frames per second after them."""

    def __init__(self) -> None:
        self._started = self._first = self._last = time.perf_counter()
        self._blocks = self._following = 0

    def tick(self, frames: int) -> None:
        """Takes the time after this many more frames arrived on the host."""
        self._last = time.perf_counter()
        if self._blocks:
            self._following += frames
        else:
            self._first = self._last
        self._blocks += 1

    @property
    def figures(self) -> dict[str, float | None]:
        """Seconds to the first frames, loading included, and then frames per second, or None."""
        seconds = self._last - self._first
        rate = round(self._following / seconds, 2) if self._following else None
        first = round(self._first - self._started, 3)
        return {"seconds_to_first_frames": first, "frames_per_second": rate}

    def __str__(self) -> str:
        first, rate = self.figures.values()
        return f"first frames after {first} s" + (f", then {rate} frames/s" if rate else "")


class Inputs(Protocol):
    """Inputs of one kind, such as prompts; without effect if the bundle does not take them."""

    def begin(self, session: Any) -> None:
        """Sets the inputs that a video starts with."""

    def before(self, session: Any, block: int) -> None:
        """Sets the inputs that change at a block, before it is generated."""


@click.command(cls=Command)
@bundle_argument
@click.option("--prompt", help="Text of the prompt.")
@click.option(
    "--prompt-embeds", type=PATH, help="Text embeddings (.safetensors) in place of --prompt."
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
@click.option("--image", type=PATH, help="Picture to animate, in RGB and of the bundle's size.")
@click.option(
    "--image-embeds",
    type=PATH,
    help="CLIP embedding of the picture (.safetensors), for a bundle without image encoder.",
)
@click.option("--motion", type=float, help="Motion bucket of the clip.  [default: 127]")
@click.option("--noise-aug", type=float, help="Noise on the encoded picture.  [default: 0.02]")
@click.option(
    "--actions",
    type=PATH,
    metavar="FILE",
    help="Actions of a world model, a row for each frame: .npy, or .csv with commas.",
)
@click.option(
    "--start",
    type=PATH,
    metavar="PATH",
    help="What a world model starts from: a folder with low_res.npy, full_res.npy and act.npy, or "
    "an image.",
)
@click.option(
    "--blocks",
    type=click.IntRange(min=1),
    help="Length in blocks.  [default: 8; with --image 1; with --actions one a row]",
)
@click.option(
    "--frames", type=click.IntRange(min=1), help="Length in frames, in place of --blocks."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--decoder",
    metavar="NAME",
    help="Decoder, for a bundle that has several; `vidc inspect` lists them.  [default: the first]",
)
@click.option(
    "--fps", type=click.IntRange(min=1), help="Frames a second.  [default: 16; with --image 7]"
)
@click.option(
    "--scale",
    type=click.IntRange(1, 8),
    default=1,
    show_default=True,
    help="Enlarge the frames by this factor, bicubically.",
)
@click.option(
    "-o",
    "--output",
    type=PATH,
    default=Path("out.mp4"),
    show_default=True,
    help="An .mp4, .webp or .gif file; a batch gets one numbered file per video.",
)
@json_option
def command(
    bundle: Path,
    blocks: int | None,
    frames: int | None,
    seed: int,
    fps: int | None,
    decoder: str | None,
    scale: int,
    output: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Generate a video with a bundle."""
    from vidc.runtime.start import start_gpu

    start_gpu(bundle)
    from vidc.runtime.bundle import load
    from vidc.runtime.manifest import read_manifest
    from vidc.runtime.video import open_writer

    clock = Clock()
    # Refuses invalid options before engines are loaded.
    spec = read_manifest(bundle).spec.with_decoder(decoder)
    fps = fps or spec.default_fps
    controls = taken(ControlOptions, options).read(bundle, spec)
    blocks = _length(blocks, frames, controls.rows, spec)
    image = taken(ImageOptions, options).read(bundle, spec, fps)
    prompts = taken(PromptOptions, options).read(bundle, spec, blocks)
    with ExitStack() as stack:
        outputs = _outputs(output, spec.videos)
        writers = [stack.enter_context(open_writer(path, fps=fps)) for path in outputs]
        loaded = stack.enter_context(load(bundle))
        for note in loaded.notes:
            click.echo(note, err=True)
        session = stack.enter_context(loaded.session(seed=seed, decoder=decoder))
        inputs: tuple[Inputs, ...] = (prompts, image, controls)
        for each in inputs:
            each.begin(session)
        length, label = (blocks * spec.steps, "steps") if image.given else (blocks, "blocks")
        bar = stack.enter_context(click.progressbar(length=length, label=label, file=sys.stderr))
        generate = clips if image.given else partial(_blocks, inputs=inputs)
        for fetched in generate(session, blocks, partial(bar.update, 1)):
            made = fetched()
            videos = [made] if spec.videos == 1 else made
            clock.tick(len(videos[0]))
            for writer, video in zip(writers, videos, strict=True):
                video = _enlarged(video, scale)
                writer.write(video if frames is None else video[: frames - writer.count])
    count, encoder = writers[0].count, writers[0].encoder
    if as_json:
        document = {"outputs": [str(path) for path in outputs], "frames": count}
        print_json(document | {"encoder": encoder} | clock.figures)
    else:
        click.echo(str(clock), err=True)
        print_text("\n".join(f"{path}: {count} frames" for path in outputs))


def _enlarged(frames: "Tensor", scale: int) -> "Tensor":
    """Returns frames uint8 ``[frames, H, W, 3]``, ``scale`` times as high and wide."""
    from torch.nn.functional import interpolate

    if scale == 1:
        return frames
    larger = interpolate(frames.permute(0, 3, 1, 2).float(), scale_factor=scale, mode="bicubic")
    return larger.round().clamp(0, 255).byte().permute(0, 2, 3, 1)


def _blocks(
    session: "Session[Any]",
    count: int,
    done: Callable[[], object],
    inputs: tuple[Inputs, ...],
) -> "Iterator[Callable[[], Tensor]]":
    """Yields functions that return the frames of each block, as ``Session.fetch`` does.

    The first block comes at once. A later block comes after the next one is queued, so that the
    GPU stays busy while its frames are written.

    Args:
        session: ready for its first block.
        count: number of blocks.
        done: called after each block.
        inputs: prompts, image and controls of the video.
    """
    waiting: list[Callable[[], Tensor]] = []
    for block in range(count):
        for each in inputs:
            each.before(session, block)
        waiting.append(session.fetch(session.step()))
        if block == 0 or len(waiting) > 1:
            yield waiting.pop(0)
            done()
    for fetched in waiting:
        yield fetched
        done()


def _length(blocks: int | None, frames: int | None, rows: int | None, spec: "ProgramSpec") -> int:
    """Returns the number of blocks, from --blocks, --frames, the actions or the default.

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
