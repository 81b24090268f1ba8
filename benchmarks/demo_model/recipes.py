"""What recipes in 8 bits do to the demo model's videos, on held-out prompts, as JSON.

    vidc calibrate demo --gpu cpu --checkpoint configs/demo -o out/demo-calibration
    PYTHONPATH=benchmarks python -m demo_model.recipes out/demo-calibration fp8-linear int8-static

The same prompts and noise in float32 and by each recipe: how many objects are right, and how near
each video is. One rollout decides little: where the model is about to choose between two shapes, a
small error chooses the other one, so medians stand beside the worst. Rounding is played in PyTorch,
with the numbers that a build stores; what a kernel rounds besides is not.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from demo_model.evaluation import measures
from demo_model.evaluation.eager import eager_bundle
from demo_model.evaluation.measures import Counts
from vidc.compiler.analyze.groups import layer_groups, layers_of
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.artifact import Calibration, read_calibration
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.validate.metrics import psnr, ssim
from vidc.compiler.validate.reference import EagerEngine, part_engines
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.runtime.bundle import Bundle

CHECKPOINT = Path(__file__).parents[2] / "configs/demo"
BLOCK = 12
"""Frames."""
ASKED = {"fp8": (38.0, 0.98), "int8": (35.0, 0.97)}
"""PSNR in decibels and SSIM, of the worst block."""
SCORES = ("color", "shape", "direction")
POINTS = 1.0
"""Of a hundred, that a score may lie below float32's."""


def lost(rates: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, Any]:
    """Points of a hundred by which a recipe's scores lie below float32's; below zero is above.

    Args:
        rates: its own, shares of all objects.
        exact: float32's, of the same prompts and noise.
    """
    points = {score: 100 * (exact[score] - rates[score]) for score in SCORES}
    within = {score: below <= POINTS for score, below in points.items()}
    return {
        "points lost": points,
        "within a point": within,
        "scores passed": all(within.values()),
    }


def compared(made: Sequence[Tensor], expected: Sequence[Tensor]) -> dict[str, Any]:
    """How near videos ``[3, T, H, W]`` in -1..1 are, each by its worst block."""
    worst = []
    for video, reference in zip(made, expected, strict=True):
        # The first block has fewer frames, so that blocks end where the video does.
        pairs = zip(_blocks(video), _blocks(reference), strict=True)
        found = [(psnr(a, b), ssim(a, b)) for a, b in pairs]
        worst.append((min(d for d, _ in found), min(s for _, s in found)))
    decibels, likeness = zip(*worst, strict=True)
    return {
        "median dB": statistics.median(decibels),
        "least dB": min(decibels),
        "median SSIM": statistics.median(likeness),
        "least SSIM": min(likeness),
        "worst blocks": [{"dB": d, "SSIM": s} for d, s in worst],
    }


def _blocks(video: Tensor) -> list[Tensor]:
    frames = (video.permute(1, 0, 2, 3) + 1) * 127.5
    first = frames.shape[0] % BLOCK or BLOCK
    return [frames[:first], *frames[first:].split(BLOCK)]


def rows(
    config: CausalVideo,
    bundle: Bundle,
    calibration: Calibration,
    recipes: Sequence[str],
    counts: Counts,
    seed: int,
) -> list[dict[str, Any]]:
    """Float32, then each recipe.

    Args:
        config: of the model.
        bundle: of PyTorch's engines in float32.
        calibration: of its weights.
        recipes: names or paths.
        counts: how many prompts, and how many blocks of each.
        seed: of the noise.
    """
    denoise = bundle.engines["denoise"]
    assert isinstance(denoise, EagerEngine)
    network = denoise.module.transformer
    assert isinstance(network, CausalWan)
    rates, expected = measures.prompts(bundle, counts, seed)
    exact = rates
    found = [{"recipe": None, **exact}]
    _tell(found[-1])
    for name in recipes:
        recipe = load_recipe(name)
        formats = apply_recipe(recipe, config)
        layers = QuantizedLayers(config.quantized_part, network, formats, calibration)
        started = time.perf_counter()
        with layers.quantized(layers_of(layer_groups(config, formats))):
            engines = {**bundle.engines, **part_engines(config.quantized_part, network)}
            rounded = Bundle(bundle.program, replace(bundle.resources, engines=engines))
            rates, made = measures.prompts(rounded, counts, seed)
        # Whether float32's model is good enough is another question.
        del rates["passed"]
        precision = "fp8" if any(r.format.weights == "fp8" for r in recipe.linear) else "int8"
        near = compared(made, expected)
        least = zip((near["median dB"], near["median SSIM"]), ASKED[precision], strict=True)
        found.append(
            {
                "recipe": recipe.name,
                "share of Linears' products": formats.flops_share,
                **rates,
                **lost(rates, exact),
                **near,
                "asked": dict(zip(("dB", "SSIM"), ASKED[precision], strict=True))
                | {"points": POINTS},
                "median passed": all(value >= limit for value, limit in least),
                "seconds": time.perf_counter() - started,
            }
        )
        _tell(found[-1])
    return found


def _tell(row: Mapping[str, Any]) -> None:
    shown = {name: value for name, value in row.items() if name != "worst blocks"}
    print(json.dumps(shown), file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("recipes", nargs="+")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    sizes = load_preset("demo").model
    assert isinstance(sizes, CausalVideo)
    sizes = replace(sizes, stream=replace(sizes.stream, batch=options.batch))
    counts = Counts(prompts=options.prompts, blocks=options.blocks)
    with TemporaryDirectory() as folder, torch.inference_mode():
        device = "cuda" if torch.cuda.is_available() else "cpu"
        config, bundle = eager_bundle(sizes, CHECKPOINT, Path(folder), device)
        calibration = read_calibration(options.calibration, config)
        found = rows(config, bundle, calibration, options.recipes, counts, options.seed)
    document = {
        "schema": 1,
        "seed": options.seed,
        "prompts": options.prompts,
        "blocks": options.blocks,
        "batch": options.batch,
        "calibration": calibration.document.tensors.sha256,
        "rows": found,
        "fingerprint": fingerprint(bundle.device),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
