"""Compares bundles and recipes of the demo with PyTorch in float32, on held-out prompts.

Prints JSON, and a line for each candidate on standard error:

    python benchmarks/demo_precision.py out/demo-bf16 out/demo-fp8-linear \\
      > benchmarks/results/demo-precision-h200.json
    python benchmarks/demo_precision.py --calibration out/demo-calibration fp8-linear int8-static

A candidate is a bundle, or the name of a recipe, whose quantized layers PyTorch runs. All of them
start from the same noise. Two things are measured:

- PSNR of decoded frames against PyTorch in float32, as ``vidc validate`` computes it. Each prompt
  is played twice, with a prompt switch and the reference's text embeddings: free, where blocks
  continue from the candidate's own blocks, and forced, where they continue from the reference's.
  A prompt's PSNR is that of its worst block, at most 100 dB: over all pixels, and over those that
  change in the clip.
- Scores: ``demo_model.reader`` reads the attributes of objects from the first three blocks, made
  with the candidate's own text encoder. The result has the share of right ones, and the percentage
  points that each candidate lost against the first one, with a 95 % interval.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from demo_model.evaluate import ATTRIBUTES, changing, eager_bundle, held_out, hits_of, rate
from demo_model.reader import score
from demo_model.render import render
from demo_model.world import Clip, first_frame
from torch import Tensor

from vidc.compiler.analyze.groups import layer_groups, layers_of
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.artifact import read_calibration
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.validate.metrics import psnr
from vidc.compiler.validate.play import Inputs, Player
from vidc.compiler.validate.reference import part_engines, quantized_network
from vidc.compiler.validate.scenario import Scenario
from vidc.runtime.bundle import Bundle, load

WEIGHTS = Path(__file__).parents[1] / "configs/demo"
SCORED = Scenario(blocks=3, switch_after=3, rollout=True)
"""Blocks that scores are read from, all under one prompt."""
MOST_DB = 100.0
"""PSNR of equal frames."""
Blocks = Sequence[Tensor]
"""Latents ``[N, F, C, h, w]`` or frames, uint8 ``[N, T, H, W, 3]``, block by block."""
Scores = Sequence[list[dict[str, bool]]]
"""Attributes of each clip's objects that are right."""
Reader = Callable[[Sequence[Clip], Blocks], Scores]


@dataclass(frozen=True)
class Rollouts:
    """One rollout for each of N clips.

    Attributes:
        clips: prompts before and after the switch.
        scenario: number of blocks, and where the prompt switches.
        noise: of each clip, ``[N, blocks, steps, F, C, h, w]``.
    """

    clips: Sequence[Clip]
    scenario: Scenario
    noise: Tensor

    @classmethod
    def drawn(cls, clips: Sequence[Clip], scenario: Scenario, reference: Bundle) -> "Rollouts":
        """Draws the noise of clips for bundles of the sizes of ``reference``."""
        steps, _, *shape = reference.spec.noise_shape
        draw = torch.Generator().manual_seed(0)
        noise = torch.randn(len(clips), scenario.blocks, steps, *shape, generator=draw)
        return cls(clips, scenario, noise.to(reference.device))

    def embeds(self, bundle: Bundle) -> Tensor:
        """Returns a bundle's embeddings of both prompts of each clip, ``[N, 2, L, E]``."""
        encode = bundle.resources.shared
        texts = [[clip.shown(at).caption for at in (0, clip.at)] for clip in self.clips]
        return torch.stack([torch.cat([encode(text).clone() for text in both]) for both in texts])

    def play(
        self, bundle: Bundle, embeds: Tensor, forced: Blocks | None = None
    ) -> tuple[Blocks, Blocks]:
        """Returns latents and frames (on the CPU) that a bundle plays in one session.

        With ``forced``, each block continues from these latents.
        """
        player, blocks = Player(bundle.program, bundle.resources), range(self.scenario.blocks)
        count, batch = len(self.clips), bundle.spec.batch
        latents, frames = [], []
        with player.program(player.resources) as session:
            for at in range(0, count, batch):
                rows = [min(row, count - 1) for row in range(at, at + batch)]
                inputs = Inputs(embeds[rows].transpose(0, 1), self.noise[rows].movedim(0, 2), {})
                given = None if forced is None else [each[rows] for each in forced]
                session.reset()
                played = player.play(session, self.scenario, inputs, blocks, given)
                latents.append(played.latents)
                frames.append([played.frames[block].cpu() for block in blocks])
        # The last batch may repeat the last clip.
        both = (zip(*each, strict=True) for each in (latents, frames))
        joined, pictures = ([torch.cat(block)[:count] for block in each] for each in both)
        return joined, pictures

    def changing(self, size: tuple[int, int]) -> list[Tensor]:
        """Returns the pixels ``[H, W]`` that change in each clip as the renderer draws it."""
        frames = torch.arange(first_frame(self.scenario.blocks))
        videos = (render([clip], frames, size, self.noise.device)[0][0] for clip in self.clips)
        return [changing(video).cpu() for video in videos]


def decibels(frames: Blocks, reference: Blocks, areas: Sequence[Tensor]) -> dict[str, Any]:
    """Returns the PSNR of each clip's worst block over all pixels, and over its ``areas`` entry."""
    worst: dict[str, list[float]] = {"all": [], "changing": []}
    for index, area in enumerate(areas):
        blocks = [(own[index], right[index]) for own, right in zip(frames, reference, strict=True)]
        worst["all"].append(min(psnr(own, right) for own, right in blocks))
        worst["changing"].append(min(psnr(own[:, area], right[:, area]) for own, right in blocks))
    found = {}
    for name, values in worst.items():
        values = [min(value, MOST_DB) for value in values]
        found[name] = {**asdict(Summary.of(values)), "worst": min(values), "prompts": values}
    return found


def lost(own: Sequence[bool], first: Sequence[bool]) -> dict[str, float]:
    """Returns the percentage points that ``own`` lost against ``first`` on the same subjects.

    The 95 % interval is that of D. G. Bonett and R. M. Price, "Adjusted Wald confidence interval
    for a difference of binomial proportions based on paired data" (2012).
    """
    pairs = [*zip(own, first, strict=True)]
    n, missed = len(pairs), sum(b and not a for a, b in pairs)
    gained = sum(a and not b for a, b in pairs)
    down, up = (missed + 1) / (n + 2), (gained + 1) / (n + 2)
    half = 1.959964 * math.sqrt((down + up - (down - up) ** 2) / (n + 2))
    points = {"lost": (missed - gained) / n, "low": down - up - half, "high": down - up + half}
    return {"n": n, **{name: 100 * value for name, value in points.items()}}


def read_clip(clip: Clip, video: Any) -> list[dict[str, bool]]:
    """Returns the scores of a clip from its first frames, a uint8 array ``[T, H, W, 3]``."""
    torch.set_num_threads(1)
    pixels = torch.from_numpy(video).permute(3, 0, 1, 2) / 127.5 - 1
    return score(pixels, clip, torch.arange(len(video)))


def read_clips(pool: ProcessPoolExecutor, clips: Sequence[Clip], frames: Blocks) -> Scores:
    """Returns the scores of clips, read by the processes of the pool."""
    videos = [video.numpy() for video in torch.cat([*frames], 1)]
    return list(pool.map(read_clip, clips, videos, chunksize=4))


def scores_of(clips: Sequence[Clip], scores: Scores, first: Scores) -> dict[str, Any]:
    """Returns rates, points lost against the first candidate, and every object read wrong."""
    found, other = hits_of(scores), hits_of(first)
    for hits in (found, other):
        hits["all attributes"] = [hit for name in ATTRIBUTES for hit in hits[name]]
    wrong = [
        {"prompt": at, "caption": clip.scene.caption, "object": index, "wrong": missed}
        for at, (clip, things) in enumerate(zip(clips, scores, strict=True))
        for index, thing in enumerate(things)
        if (missed := [name for name, right in thing.items() if not right])
    ]
    return {
        "rates": {name: rate(hits) for name, hits in found.items()},
        "lost": {name: lost(hits, other[name]) for name, hits in found.items()},
        "wrong": wrong,
    }


@contextmanager
def candidate(name: str, reference: Bundle, calibration: Path | None) -> Iterator[Bundle]:
    """Yields a loaded bundle, or the reference with a recipe's quantized layers."""
    if Path(name).is_dir():
        with load(name) as bundle:
            yield bundle
        return
    model = load_preset("demo").model
    model = replace(model, stream=replace(model.stream, batch=reference.spec.batch))
    model = SourceOptions(WEIGHTS).resolve(model)[0]
    formats = apply_recipe(load_recipe(name), model)
    ranges = None if calibration is None else read_calibration(calibration, model)
    network = quantized_network(reference.engines, model)
    layers = QuantizedLayers(model.quantized_part, network, formats, ranges)
    with layers.quantized(layers_of(layer_groups(model, formats))):
        engines = {**reference.engines, **part_engines(model.quantized_part, network)}
        yield Bundle(reference.program, replace(reference.resources, engines=engines))


class Comparison:
    """Plays candidates on the reference's prompts and noise, and compares them with it."""

    def __init__(self, reference: Bundle, options: argparse.Namespace, read: Reader) -> None:
        scenario = Scenario(options.blocks, options.switch, rollout=True)
        self._read = read
        self._compared = Rollouts.drawn(
            held_out(options.prompts, 0, options.switch), scenario, reference
        )
        self._scored = Rollouts.drawn(held_out(options.scored, 0), SCORED, reference)
        self._embeds = self._compared.embeds(reference)
        # As golden data are made: convolutions on a GPU would round to TF32.
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            self._latents, self._frames = self._compared.play(reference, self._embeds)
        self._areas = self._compared.changing(reference.spec.video)
        self._first: Scores | None = None

    def row(self, bundle: Bundle) -> dict[str, Any]:
        """Returns a candidate's figures; later candidates are compared with the first one."""
        _, free = self._compared.play(bundle, self._embeds)
        _, forced = self._compared.play(bundle, self._embeds, self._latents)
        clips = self._scored.clips
        _, frames = self._scored.play(bundle, self._scored.embeds(bundle))
        scores = self._read(clips, frames)
        self._first = self._first or scores
        return {
            "forced": decibels(forced, self._frames, self._areas),
            "free": decibels(free, self._frames, self._areas),
            "scores": scores_of(clips, scores, self._first),
        }


def main() -> None:
    """Measures the candidates that the command line names, and prints the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("candidates", nargs="+", help="folders of bundles, or names of recipes")
    parser.add_argument(
        "--calibration", type=Path, help="folder of vidc calibrate, for recipes with static scales"
    )
    parser.add_argument(
        "--prompts",
        type=int,
        default=50,
        help="number of prompts whose frames are compared with float32",
    )
    parser.add_argument(
        "--blocks", type=int, default=12, help="number of blocks of each of these rollouts"
    )
    parser.add_argument(
        "--switch", type=int, default=6, help="number of blocks before the prompt switch"
    )
    parser.add_argument(
        "--scored", type=int, default=400, help="number of prompts whose objects are scored"
    )
    parser.add_argument(
        "--batch", type=int, default=10, help="number of videos that PyTorch plays at once"
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--device", default=device, help="device that PyTorch runs on")
    options = parser.parse_args()
    for name in options.candidates:
        if not Path(name).is_dir():
            load_recipe(name)  # Refuses an unknown name before anything is played.
    with (
        ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn")) as pool,
        torch.no_grad(),
    ):
        reference = eager_bundle(WEIGHTS, options.batch, options.device)
        comparison = Comparison(reference, options, partial(read_clips, pool))
        rows = {}
        for name in options.candidates:
            with candidate(name, reference, options.calibration) as bundle:
                row = rows[Path(name).name] = comparison.row(bundle)
            shown = {
                f"{kind}, {area}": f"{found['median']:.2f} dB, worst {found['worst']:.2f}"
                for kind in ("forced", "free")
                for area, found in row[kind].items()
            }
            print(name, shown, file=sys.stderr, flush=True)
    settings = {name: getattr(options, name) for name in ("prompts", "blocks", "switch", "scored")}
    report = {
        "schema": 1,
        **settings,
        "fingerprint": fingerprint(reference.device),
        "candidates": rows,
    }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
