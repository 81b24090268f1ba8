"""What is asked of the demo model, measured on its videos; every prompt and clip is held out."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from demo_model.background import background_psnr
from demo_model.clip import frames_of
from demo_model.evaluation.videos import Script, reconstructed, videos, with_levels
from demo_model.light import PERIOD
from demo_model.render import render
from demo_model.score import BLOCK, Score, read, score
from demo_model.split import Example, Split, distinct, sample
from vidc.runtime.bundle import Bundle

VAE_DB = 30.0
RIGHT = 0.9
BACKGROUND_DB = 25.0

EARLY, LATE = 5, 100
"""Blocks, counted from 1, whose backgrounds are compared: under the same light, if PERIOD says.

Objects are read from ``EARLY`` blocks at either end, as many as a prompt's video has. In the 12
frames of one block what spins is seen at a few angles alone, and whether its shape is read right
there says which they were, at the start as at the end.
"""


@dataclass(frozen=True)
class Counts:
    """How much is measured.

    Attributes:
        clips: that the VAE reconstructs.
        prompts: of videos that are scored.
        blocks: of each of these.
        switches: cases.
        runs: of ``LATE`` blocks.
    """

    clips: int = 32
    prompts: int = 200
    blocks: int = 5
    switches: int = 100
    runs: int = 100


def psnr(one: Tensor, other: Tensor) -> float:
    """Decibels between pictures in -1..1."""
    error = float((one - other).double().square().mean())
    return 10 * math.log10(4 / error) if error > 0 else math.inf


def vae(bundle: Bundle, clips: int, blocks: int = 3) -> dict[str, Any]:
    """PSNR of held-out clips through encoder and decoder."""
    height, width = bundle.spec.video
    found: list[float] = []
    batch = bundle.spec.batch
    for at in range(0, clips, batch):
        chosen = [sample(Split.HELD_OUT, at + index).clip for index in range(batch)]
        asked = render(
            chosen, frames_of(blocks * bundle.spec.block), height=height, width=width,
            device=bundle.device,
        )  # fmt: skip
        made = reconstructed(bundle, asked)
        found += [psnr(*pair) for pair in zip(made, asked, strict=True)]
    found = found[:clips]
    mean = statistics.fmean(found)
    return {
        "clips": len(found),
        "mean dB": mean,
        "least dB": min(found),
        "asked dB": VAE_DB,
        "passed": mean >= VAE_DB,
    }


def prompts(bundle: Bundle, counts: Counts, seed: int) -> tuple[dict[str, Any], list[Tensor]]:
    """Scores of held-out prompts, and the videos."""
    examples = list(distinct(Split.HELD_OUT, counts.prompts))
    made = list(videos(bundle, _scripts(examples), counts.blocks, seed))
    return {**_rates(made, examples), "asked": RIGHT}, made


def steps(
    bundle: Bundle, levels: Sequence[Sequence[float]], counts: Counts, seed: int
) -> list[dict[str, Any]]:
    """Scores with fewer steps, and how near the videos are to those of the bundle's own steps.

    Args:
        bundle: with its own levels.
        levels: shares of noise of each sampler that is tried; the bundle's own come first.
        counts: how many prompts.
        seed: of all of them.
    """
    examples = list(distinct(Split.HELD_OUT, counts.prompts))
    rows: list[dict[str, Any]] = []
    reference: list[Tensor] = []
    for chosen in levels:
        changed = with_levels(bundle, chosen)
        made = list(videos(changed, _scripts(examples), counts.blocks, seed))
        reference = reference or made
        near = [psnr(*pair) for pair in zip(made, reference, strict=True)]
        finite = [value for value in near if math.isfinite(value)]
        rows.append(
            {
                "steps": len(chosen),
                "levels": list(chosen),
                **_rates(made, examples),
                "dB against all steps": statistics.fmean(finite) if finite else None,
            }
        )
    return rows


def long_runs(bundle: Bundle, runs: int, seed: int, late: int = LATE) -> dict[str, Any]:
    """Backgrounds of two blocks far apart, and whether objects are right at either end."""
    if late < 2 * EARLY or (late - EARLY) * BLOCK % PERIOD:
        raise ValueError(f"blocks {EARLY} and {late} overlap, or are not under the same light")
    examples = list(distinct(Split.HELD_OUT, runs))
    decibels: list[float] = []
    wrong: list[dict[str, Any]] = []
    right = dict.fromkeys(("first blocks", "last blocks", f"block {EARLY}", f"block {late}"), 0)

    def wanted(block: int) -> bool:
        return block < EARLY or block >= late - EARLY

    made = videos(bundle, _scripts(examples), late, seed + 5000, kept=wanted)
    for video, example in zip(made, examples, strict=True):
        first, last = video[:, : -EARLY * BLOCK], video[:, -EARLY * BLOCK :]
        one, other = first[:, -BLOCK:], last[:, -BLOCK:]
        decibels.append(background_psnr(one, other).db)
        found = [score(read(part), example.scene) for part in (first, last, one, other)]
        for where, scores in zip(right, found, strict=True):
            right[where] += all(thing.right == 3 for thing in scores)
        if any(thing.right < 3 for thing in found[1]):
            objects = [vars(thing) for thing in found[1]]
            wrong.append({"prompt": example.caption, "objects": objects})
    near = sum(value >= BACKGROUND_DB for value in decibels) / runs
    still = right["last blocks"] / runs
    return {
        "runs": runs,
        "blocks": late,
        "mean dB": statistics.fmean(decibels),
        "median dB": statistics.median(decibels),
        "least dB": min(decibels),
        "runs of enough dB": near,
        "objects right": {where: count / runs for where, count in right.items()},
        "wrong": wrong,
        "asked": {"dB": BACKGROUND_DB, "runs": RIGHT},
        "passed": near >= RIGHT and still >= RIGHT,
    }


def _scripts(examples: Sequence[Example]) -> list[Script]:
    return [Script(example.caption) for example in examples]


def _rates(made: Sequence[Tensor], examples: Sequence[Example]) -> dict[str, Any]:
    """Shares of all objects whose color, shape and direction are right."""
    scores: list[Score] = []
    extra = 0
    for video, example in zip(made, examples, strict=True):
        readings = read(video)
        found = score(readings, example.scene)
        scores += found
        extra += max(0, len(readings) - len(found))
    rates = {
        "color": sum(one.color for one in scores) / len(scores),
        "shape": sum(one.shape for one in scores) / len(scores),
        "direction": sum(one.direction for one in scores) / len(scores),
    }
    return {
        "prompts": len(examples),
        "objects": len(scores),
        **rates,
        "all three": sum(one.right == 3 for one in scores) / len(scores),
        "objects too many": extra,
        "passed": min(rates.values()) >= RIGHT,
    }
