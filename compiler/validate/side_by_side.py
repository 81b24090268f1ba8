"""Side-by-side video of a rollout: reference, engine and difference."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vidc.compiler.validate.compare import BlockFrames
from vidc.compiler.validate.pictures import Picture
from vidc.runtime.video import VideoWriter, open_writer

MAGNIFIED = 10
"""Factor that makes a difference of one level visible."""
LEAST_WIDTH = 320
"""Smaller frames are enlarged by an integer factor, so that captions fit."""
GAP = 4
CAPTION = 44
FONT_SIZE = 14
LINE = 18
BACKGROUND, TEXT, FAINT = (20, 23, 28), (230, 233, 238), (154, 164, 178)


def write_video(path: Path, blocks: Sequence[BlockFrames], switches: Sequence[int]) -> None:
    """Writes the blocks' frames: reference, engine and magnified difference side by side.

    Videos of a batch lie one below another. A caption names the source of each block's reference
    frames.

    Raises:
        UsageError, UnavailableError: as ``open_writer`` and ``VideoWriter.write``.
    """
    with open_writer(path) as writer:
        for block in blocks:
            _write_block(writer, block, block.block in switches)


def _write_block(writer: VideoWriter, block: BlockFrames, switched: bool) -> None:
    source = "its latents, decoded by the bundle" if block.decoded else "PyTorch, float32"
    number = f"block {block.block}{', new prompt' if switched else ''}"
    captions = (
        ("reference", source),
        ("engine", number),
        (f"difference x {MAGNIFIED}", f"largest {_largest(block)} of 255 levels"),
    )
    for reference, engine in _frames(block):
        writer.write(side_by_side(reference, engine, captions)[None])


def side_by_side(
    reference: Picture, engine: Picture, captions: Sequence[tuple[str, str]]
) -> Picture:
    """Composes two frames uint8 [H, W, 3] and their magnified difference, with captions.

    Each of the three captions is a line and a fainter one below it.
    """
    difference = np.abs(engine.astype(np.int16) - reference.astype(np.int16)) * MAGNIFIED
    pictures = (reference, engine, np.minimum(difference, 255).astype(np.uint8))
    factor = -(-LEAST_WIDTH // reference.shape[1])
    panels = [picture.repeat(factor, 0).repeat(factor, 1) for picture in pictures]
    height, width = panels[0].shape[:2]
    size = (_even(3 * width + 2 * GAP), _even(CAPTION + height))
    page = Image.new("RGB", size, BACKGROUND)
    draw, font = ImageDraw.Draw(page), ImageFont.load_default(FONT_SIZE)
    for column, (panel, lines) in enumerate(zip(panels, captions, strict=True)):
        left = column * (width + GAP)
        page.paste(Image.fromarray(panel), (left, CAPTION))
        for row, (line, color) in enumerate(zip(lines, (TEXT, FAINT), strict=True)):
            draw.text((left + 6, 4 + row * LINE), line, color, font)
    return np.asarray(page)


def _frames(block: BlockFrames) -> Iterator[tuple[Picture, Picture]]:
    """Yields reference and engine frames, videos of a batch stacked vertically."""
    for frame in range(block.reference.shape[1]):
        reference, engine = (
            np.concatenate([*frames[:, frame].numpy()])
            for frames in (block.reference, block.engine)
        )
        yield reference, engine


def _largest(block: BlockFrames) -> int:
    return int((block.engine.short() - block.reference.short()).abs().max())


def _even(size: int) -> int:
    return size + size % 2
