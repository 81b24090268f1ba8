"""Judges the demo model by its videos and prints what it found as JSON.

    PYTHONPATH=benchmarks python -m demo_model.evaluate out/trained/weights --eager --batch 50
    PYTHONPATH=benchmarks python -m demo_model.evaluate out/demo-cpu-fp32

The first form plays exported weights in PyTorch, the second a built bundle with a text encoder.
Scenes are held out of training; with a prompt switch, the later one is and the first one may be.
Exits 1 if a target is missed.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from demo_model.export import FILES, SHIPPED
from demo_model.networks import PRESET, Sizes
from demo_model.reader import score
from demo_model.render import render
from demo_model.world import LENGTH, Clip, draw_clip, first_frame
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.config.program import program_spec
from vidc.compiler.validate import metrics
from vidc.compiler.validate.reference import eager_engines
from vidc.exporters.parts.umt5.tokenizer import tokenizer_json
from vidc.runtime.bundle import Bundle, load
from vidc.runtime.graphs import Runners
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.causal_video import TEXT_ENCODER, CausalVideo
from vidc.runtime.text import TextEncoder

TARGETS = {
    "color": 0.99, "shape": 0.98, "direction": 0.98, "place": 0.98, "two objects": 0.95,
    "switch": 0.95, "long": 0.95,
}  # fmt: skip
ATTRIBUTES = ("color", "shape", "direction", "place")
LAST = 5  # Blocks at the end of a long rollout, which are read.
Judged = list[tuple[list[dict[str, bool]], dict[str, float]]]
"""The scores of each clip's objects, and its PSNR against the renderer."""


def held_out(count: int, seed: int, switch: int | None = None) -> list[Clip]:
    """Held-out clips; with a prompt switch before block ``switch``, the later scene is held out."""
    choose = random.Random(f"evaluation {seed} {switch}")
    at = None if switch is None else first_frame(switch)
    return [draw_clip(choose, True, at) for _ in range(count)]


def videos(
    bundle: Bundle, clips: Sequence[Clip], blocks: range, switch: int | None = None,
    decoder: str | None = None,
) -> Iterator[Tensor]:  # fmt: skip
    """Frames of the wanted blocks of each clip, float32 ``[3, T, H, W]`` in -1..1 on the CPU."""
    batch = bundle.spec.batch
    with bundle.session(decoder=decoder) as session:
        for at in range(0, len(clips), batch):
            rows = [clips[min(row, len(clips) - 1)] for row in range(at, at + batch)]
            session.reset(at)
            frames = []
            for block in range(blocks.stop):
                if block in (0, switch):
                    captions = [clip.shown(first_frame(block)).caption for clip in rows]
                    embeds = [session.embeds(caption)[:1] for caption in captions]
                    session.switch_prompt(torch.cat(embeds))
                made = session.step()
                if block in blocks:
                    frames.append(made if batch > 1 else made[None])
            for video in torch.cat(frames, 1)[: len(clips) - at]:
                yield video.permute(3, 0, 1, 2).cpu().float() / 127.5 - 1


def changing(video: Tensor) -> Tensor:
    """Pixels ``[H, W]`` that change in a video ``[3, T, H, W]`` (-1..1)."""
    return ((video.amax(1) - video.amin(1)) > 0.05).any(0)


def psnr(made: Tensor, reference: Tensor) -> dict[str, float]:
    """PSNR in dB over all pixels of ``[3, T, H, W]``, and over those that change in the second."""
    area = changing(reference)
    part = metrics.psnr(made[:, :, area], reference[:, :, area], peak=2)
    return {"all": metrics.psnr(made, reference, peak=2), "changing": part}


def rate(hits: Sequence[bool]) -> dict[str, float]:
    """Share of hits with Wilson's 95 % interval (E. B. Wilson, 1927)."""
    n, share, z = len(hits), sum(hits) / len(hits), 1.959964
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return {"n": n, "rate": share, "low": (middle - half) / scale, "high": (middle + half) / scale}


def medians(judged: Judged) -> dict[str, Any]:
    """Medians of each PSNR by name, with vidc's bootstrap intervals."""
    found = [decibels for _, decibels in judged]
    return {name: asdict(Summary.of([each[name] for each in found])) for name in found[0]}


def hits_of(scores: Sequence[list[dict[str, bool]]]) -> dict[str, list[bool]]:
    """Hits of every object by attribute, and of every clip of two objects, from their scores."""
    found = {name: [thing[name] for things in scores for thing in things] for name in ATTRIBUTES}
    pairs = [_right(things) for things in scores if len(things) == 2]
    return {**found, "two objects": pairs} if pairs else found


def _right(things: Sequence[dict[str, bool]]) -> bool:
    return all(all(thing.values()) for thing in things)


def evaluate(bundle: Bundle, options: argparse.Namespace) -> dict[str, Any]:
    """All figures by name, for the options of the command line, and what each clip showed."""
    seen: list[dict[str, Any]] = []

    def judged(clips: Sequence[Clip], blocks: range, switch: int | None = None) -> Judged:
        frames = torch.arange(first_frame(blocks.start), first_frame(blocks.stop))
        made = videos(bundle, clips, blocks, switch, options.decoder)
        rows = [
            (score(own, clip, frames), psnr(own, render([clip], frames, bundle.spec.video)[0][0]))
            for clip, own in zip(clips, made, strict=True)
        ]
        for clip, (things, decibels) in zip(clips, rows, strict=True):
            captions = [each.caption for each in (clip.scene, clip.later) if each]
            row = {"captions": captions, "switch": switch, "blocks": [blocks.start, blocks.stop]}
            seen.append({**row, "scores": things, "psnr": decibels, "right": _right(things)})
        return rows

    end, switched = options.blocks, []
    prompts = judged(held_out(options.prompts, 0), range(3))
    for index, at in enumerate((2, 3, 4, 5, 6)):
        clips = held_out(len(range(index, options.switch, 5)), 0, at)
        # The second block of the new prompt must be right.
        switched += judged(clips, range(at + 1, at + 2), at)
    ends = judged(held_out(options.long, 1), range(max(0, end - LAST), end))
    found: dict[str, Any] = {"psnr": medians(prompts)}
    found |= {name: rate(hits) for name, hits in hits_of([row[0] for row in prompts]).items()}
    for name, rows in (("switch", switched), ("long", ends)):
        found[name] = {**rate([_right(things) for things, _ in rows]), "psnr": medians(rows)}
    found["missed"] = [
        name for name, least in TARGETS.items() if found.get(name, {"rate": 0})["rate"] < least
    ]
    return {**found, "clips": seen}


def eager_bundle(weights: Path, batch: int, device: str) -> Bundle:
    """A bundle whose engines are PyTorch in float32, from exported weights."""
    preset = PRESET if weights.samefile(SHIPPED) else weights / "preset.toml"
    sizes, where = Sizes.read(preset), torch.device(device)
    config = replace(sizes.config, stream=replace(sizes.config.stream, batch=batch))
    files = {Path(file).parent.name: weights / file for file in FILES.values()}
    engines = eager_engines(config, files, dict.fromkeys(files, "fp32"), where)
    tokenizer = tokenizer_json(weights / "tokenizer/tokenizer.json", sizes.text, LENGTH)
    text = TextEncoder(engines.pop(TEXT_ENCODER), tokenizer.encode(), where)
    runners = Runners.on(where, captured=False)
    return Bundle(CausalVideo, Resources(program_spec(config), engines, where, runners, text))


def _count(text: str) -> int:
    if (value := int(text)) < 1:
        raise argparse.ArgumentTypeError("expected 1 or more")
    return value


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a bundle, or exported weights with --eager")
    parser.add_argument("--eager", action="store_true", help="play weights in PyTorch")
    parser.add_argument("--batch", type=_count, default=1, help="videos side by side, with --eager")
    parser.add_argument("--decoder", help="vae or taehv; the bundle's first by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--blocks", type=_count, default=100, help="of a long rollout")
    for name, count in (("prompts", 200), ("switch", 100), ("long", 100)):
        parser.add_argument(f"--{name}", type=_count, default=count, help="number of clips")
    options = parser.parse_args()
    torch.backends.cudnn.allow_tf32 = False  # Eager weights play in float32.
    with torch.no_grad():
        if options.eager:
            bundle = eager_bundle(options.path, options.batch, options.device)
        else:
            bundle = load(options.path)
        found = {
            "decoder": options.decoder or bundle.spec.decoders[0],
            "fingerprint": fingerprint(bundle.device, None if options.eager else options.path),
            **evaluate(bundle, options),
        }
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["missed"]))


if __name__ == "__main__":
    main()
