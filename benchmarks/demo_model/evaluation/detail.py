"""How much fine detail the grounds of a video have, as drawn by the generator and by a model."""

import statistics
from typing import Any

import torch
from torch import Tensor

from demo_model.background import objects
from demo_model.clip import frames_of
from demo_model.evaluation.videos import Script, videos
from demo_model.render import render
from demo_model.split import Split, distinct
from demo_model.textures import DETAIL_WAVELENGTH
from vidc.runtime.bundle import Bundle

ASKED = 0.1
"""Of the generator's clips, where RGB is -1..1."""

BLOCKS = 2
"""Of a video that is looked at."""


def detail(clip: Tensor) -> float:
    """Standard deviation of wavelengths of at most ``DETAIL_WAVELENGTH`` pixels off the objects.

    Args:
        clip: ``[3, T, H, W]`` in -1..1, whose mean over RGB is taken.

    Returns:
        The deviation in the same range; objects, their shadows and edges are left out.
    """
    height, width = clip.shape[-2:]
    fy, fx = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None, :]
    fine = torch.hypot(fy, fx) >= 1 / DETAIL_WAVELENGTH
    waves = torch.fft.irfft2(torch.fft.rfft2(clip.mean(0)) * fine, s=(height, width))
    return float(waves[~objects(clip)].square().mean().sqrt())


def details(bundle: Bundle, count: int, seed: int) -> dict[str, Any]:
    """Mean detail of the grounds of held-out prompts' videos, and of the generator's clips."""
    examples = list(distinct(Split.HELD_OUT, count))
    made = videos(bundle, [Script(example.caption) for example in examples], BLOCKS, seed + 9000)
    frames = frames_of(BLOCKS * bundle.spec.block)
    height, width = bundle.spec.video
    drawn = (render([e.clip], frames, height=height, width=width)[0] for e in examples)
    return {
        "clips": count,
        "made": statistics.fmean(detail(clip) for clip in made),
        "drawn": statistics.fmean(detail(clip) for clip in drawn),
        "asked of what is drawn": ASKED,
        "range": [-1, 1],
    }
