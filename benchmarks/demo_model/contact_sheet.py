"""Pictures of clips: a row a clip, under its prompt.

PYTHONPATH=benchmarks python -m demo_model.contact_sheet sheet.png --split held-out --switches
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from demo_model.clip import frames_of
from demo_model.render import render
from demo_model.split import Split, distinct
from demo_model.switch import sample_switch

LINE = 14
"""Pixels of a line of text."""


def contact_sheet(clips: Tensor, texts: Sequence[str], columns: int) -> Image.Image:
    """Frames of clips ``[B, 3, T, H, W]`` in -1..1, ``columns`` of each, evenly spaced.

    Args:
        clips: on any device.
        texts: what is written over each clip, a line or more.
        columns: frames of a row.

    Raises:
        ValueError: there are not as many texts as clips.
    """
    frames, height, width = clips.shape[2:]
    chosen = torch.linspace(0, frames - 1, columns).round().long()
    bytes_ = ((clips[:, :, chosen].clamp(-1, 1) + 1) * 127.5).round().byte().cpu()
    lines = max(text.count("\n") + 1 for text in texts)
    row = height + lines * LINE + 4
    sheet = Image.new("RGB", (columns * (width + 2) - 2, row * len(clips)), "white")
    draw = ImageDraw.Draw(sheet)
    for index, (clip, text) in enumerate(zip(bytes_, texts, strict=True)):
        draw.multiline_text((2, index * row), text, fill="black", spacing=2)
        for column in range(columns):
            picture = Image.fromarray(clip[:, column].permute(1, 2, 0).numpy())
            sheet.paste(picture, (column * (width + 2), index * row + lines * LINE + 2))
    return sheet


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--split", type=Split, choices=list(Split), default=Split.TRAIN)
    parser.add_argument("--clips", type=int, default=8)
    parser.add_argument("--latents", type=int, default=12)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--switches", action="store_true", help="change the prompt halfway")
    options = parser.parse_args()
    frames = frames_of(options.latents)
    if options.switches:
        switches = [sample_switch(options.split, index) for index in range(options.clips)]
        clips = [switch.clip(frames // 2) for switch in switches]
        texts = ["\n".join(switch.captions) for switch in switches]
    else:
        examples = list(distinct(options.split, options.clips))
        clips, texts = [e.clip for e in examples], [e.caption for e in examples]
    contact_sheet(render(clips, frames), texts, options.columns).save(options.output)


if __name__ == "__main__":
    main()
