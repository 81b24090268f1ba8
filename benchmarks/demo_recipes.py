"""Compares the demo in other precisions with float32, on held-out prompts with a switch, as JSON.

    vidc calibrate demo --gpu cpu --checkpoint configs/demo -o out/demo-calibration
    python benchmarks/demo_recipes.py --calibration out/demo-calibration int8-static fp8-linear
    python benchmarks/demo_recipes.py out/demo-h100-bf16 out/demo-h100-fp8

Each candidate is a bundle, or a recipe whose quantized layers PyTorch runs. It plays every prompt
from the noise of the reference twice: free, and forced (each block goes on from the reference's
blocks). A prompt's PSNR is that of its worst block. The reference is PyTorch in float32.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from demo_model.evaluate import Player, eager_bundle, held_out, rate
from demo_model.reader import score
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
from vidc.compiler.validate.reference import part_engines, quantized_network
from vidc.runtime.bundle import Bundle, load

WEIGHTS = Path(__file__).parents[1] / "configs/demo"
SCORES = ("color", "shape", "direction", "place")


def play(
    player: Player, clips: Sequence[Clip], noise: Tensor, forced: Tensor | None = None
) -> tuple[Tensor, list[list[Tensor]]]:
    """Returns latents ``[N, blocks, F, C, h, w]`` and each clip's frames, uint8, block by block.

    ``noise`` is ``[N, blocks, steps, F, C, h, w]``; ``forced`` are the latents to go on from.
    """
    batch, latents, frames = player.bundle.spec.batch, [], []
    for at in range(0, len(clips), batch):
        rows = [min(at + index, len(clips) - 1) for index in range(batch)]
        with player.bundle.session(decoder=player.decoder) as session:
            made, seen, shown = [], [], [""] * batch
            for block in range(noise.shape[1]):
                captions = [clips[row].shown(first_frame(block)).caption for row in rows]
                if captions != shown:
                    embeds = torch.cat([session.embeds(text)[:1] for text in captions])
                    (session.switch_prompt if block else session.prompt)(embeds)
                    shown = captions
                made.append(session.generate(noise[rows, block].transpose(0, 1)))
                pictures = session.decode(made[-1])
                seen.append((pictures if batch > 1 else pictures[None]).cpu())
                if forced is not None:
                    session.force(forced[rows, block])
        count = min(batch, len(clips) - at)
        latents.append(torch.stack(made, 1)[:count])
        frames += [[pictures[index] for pictures in seen] for index in range(count)]
    return torch.cat(latents), frames


def right(clips: Sequence[Clip], frames: Sequence[Sequence[Tensor]], blocks: int) -> dict[str, Any]:
    """Shares of objects that the blocks before the switch show right."""
    times = torch.arange(first_frame(blocks))
    found = [
        thing
        for clip, video in zip(clips, frames, strict=True)
        for thing in score(
            torch.cat([*video[:blocks]]).permute(3, 0, 1, 2) / 127.5 - 1, Clip(clip.scene), times
        )
    ]
    return {name: rate([thing[name] for thing in found]) for name in SCORES}


def decibels(
    frames: Sequence[Sequence[Tensor]], reference: Sequence[Sequence[Tensor]]
) -> dict[str, Any]:
    """PSNR of each prompt's worst block."""
    values = [
        min(psnr(a.float(), b.float(), 255.0) for a, b in zip(video, asked, strict=True))
        for video, asked in zip(frames, reference, strict=True)
    ]
    finite = [min(value, 100.0) for value in values]
    return {**asdict(Summary.of(finite)), "worst": min(finite), "prompts": finite}


@contextmanager
def candidate(name: str, exact: Bundle, calibration: Path | None) -> Iterator[Bundle]:
    """Yields a loaded bundle, or the reference with a recipe's quantized layers."""
    if Path(name).is_dir():
        with load(name) as bundle:
            yield bundle
        return
    model = load_preset("demo").model
    model = replace(model, stream=replace(model.stream, batch=exact.spec.batch))
    model = SourceOptions(WEIGHTS).resolve(model)[0]
    formats = apply_recipe(load_recipe(name), model)
    ranges = None if calibration is None else read_calibration(calibration, model)
    network = quantized_network(exact.engines, model)
    layers = QuantizedLayers(model.quantized_part, network, formats, ranges)
    with layers.quantized(layers_of(layer_groups(model, formats))):
        engines = {**exact.engines, **part_engines(model.quantized_part, network)}
        yield Bundle(exact.program, replace(exact.resources, engines=engines))


def lost(scores: Mapping[str, Any], exact: Mapping[str, Any]) -> dict[str, float]:
    """Points of a hundred by which scores lie below float32's."""
    return {name: 100 * (exact[name]["rate"] - scores[name]["rate"]) for name in SCORES}


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("candidates", nargs="+", help="bundles and recipes")
    parser.add_argument("--calibration", type=Path, help="ranges of recipes with static scales")
    parser.add_argument("--prompts", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--switch", type=int, default=3, help="blocks before the prompt switch")
    parser.add_argument("--batch", type=int, default=10)
    parser.add_argument("--decoder", help="vae or taehv; the first by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    clips = held_out(options.prompts, 0, options.switch)
    with TemporaryDirectory() as folder, torch.no_grad():
        exact = eager_bundle(WEIGHTS, Path(folder), options.batch, options.device)
        steps, _, *shape = exact.spec.noise_shape
        draw = torch.Generator().manual_seed(0)
        noise = torch.randn(len(clips), options.blocks, steps, *shape, generator=draw)
        noise = noise.to(exact.device)
        latents, reference = play(Player(exact, options.decoder), clips, noise)
        scores = right(clips, reference, options.switch)
        rows: list[dict[str, Any]] = [{"candidate": "float32", **scores}]
        for name in options.candidates:
            with candidate(name, exact, options.calibration) as bundle:
                player = Player(bundle, options.decoder)
                _, free = play(player, clips, noise)
                _, forced = play(player, clips, noise, latents)
            own = right(clips, free, options.switch)
            found = {"free": decibels(free, reference), "forced": decibels(forced, reference)}
            rows.append({"candidate": name, **own, "lost": lost(own, scores), **found})
            worst = {key: round(each["worst"], 2) for key, each in found.items()}
            middle = {key: round(statistics.median(v["prompts"]), 2) for key, v in found.items()}
            print(f"{name}: median {middle}, worst {worst}", file=sys.stderr, flush=True)
    sizes = {name: getattr(options, name) for name in ("blocks", "switch", "decoder")}
    document = {"schema": 1, **sizes, "rows": rows, "fingerprint": fingerprint(exact.device)}
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
