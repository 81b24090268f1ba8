"""Judges the demo model by its videos and prints what it found as JSON.

    PYTHONPATH=benchmarks python -m demo_model.evaluate out/trained/weights --eager --batch 50
    PYTHONPATH=benchmarks python -m demo_model.evaluate out/demo-cpu-fp32

The first form plays exported weights in PyTorch, the second a built bundle with a text encoder.
Scenes are held out of training; of a switch, the later one is. Exits 1 if a target is missed.
"""

import argparse
import json
import math
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from demo_model.networks import PRESET, Sizes
from demo_model.reader import score
from demo_model.render import render
from demo_model.world import Clip, draw_scene, draw_switch, first_frame
from vidc.compiler.bench.statistics import Summary

TARGETS = {
    "color": 0.99, "shape": 0.98, "direction": 0.98, "place": 0.98, "two objects": 0.95,
    "switch": 0.95, "long": 0.95,
}  # fmt: skip
LATE = 5
"""Blocks that a long run is read from."""


def held_out(count: int, seed: int, switch: int | None = None) -> list[Clip]:
    """Held-out clips; with a prompt switch before block ``switch``, the later scene is held out."""
    clips: list[Clip] = []
    choose = random.Random(f"evaluation {seed} {switch}")
    while len(clips) < count:
        scene = draw_scene(choose, held_out=True if switch is None else None)
        try:
            later = None if switch is None else draw_switch(scene, choose, held_out=True)
        except ValueError:
            continue
        clips.append(Clip(scene, later, first_frame(switch or 0)))
    return clips


@dataclass(frozen=True)
class Player:
    """A bundle, and the decoder of its sessions."""

    bundle: Any
    decoder: str | None = None


def videos(
    player: Player, clips: Sequence[Clip], blocks: range, switch: int | None, seed: int
) -> Iterator[Tensor]:
    """Frames of the wanted blocks of each clip, float32 ``[3, T, H, W]`` in -1..1 on the CPU."""
    batch = player.bundle.spec.batch
    for at in range(0, len(clips), batch):
        some = [*clips[at : at + batch]]
        whole = [*some, *[some[-1]] * (batch - len(some))]
        session = player.bundle.session(seed=seed + at, decoder=player.decoder)

        def embeds(block: int, session: Any = session, clips: list[Clip] = whole) -> Tensor:
            captions = [clip.shown(first_frame(block)).caption for clip in clips]
            return torch.cat([session.embeds(caption)[:1] for caption in captions])

        session.prompt(embeds(0))
        frames = []
        for block in range(blocks.stop):
            if block == switch:
                session.switch_prompt(embeds(block))
            made = session.step()
            if block in blocks:
                frames.append(made if batch > 1 else made[None])
        video = torch.cat(frames, 1).permute(0, 4, 1, 2, 3)[: len(some)]
        for each in video:
            yield each.cpu().float() / 127.5 - 1


def changing(video: Tensor) -> Tensor:
    """Pixels ``[H, W]`` that change in a video ``[3, T, H, W]`` (-1..1)."""
    return ((video.amax(1) - video.amin(1)) > 0.05).any(0)


def psnr(made: Tensor, asked: Tensor) -> dict[str, float]:
    """PSNR in dB over all pixels of ``[3, T, H, W]``, and over those that change in ``asked``."""
    square = (made - asked).square()
    parts = {"all": square, "changing": square[:, :, changing(asked)]}
    return {n: 10 * math.log10(4 / max(float(p.mean()), 1e-12)) for n, p in parts.items()}


def rate(hits: Sequence[bool]) -> dict[str, float]:
    """Share of hits with Wilson's 95 % interval (E. B. Wilson, 1927)."""
    n, share, z = len(hits), sum(hits) / len(hits), 1.959964
    middle, scale = share + z * z / (2 * n), 1 + z * z / n
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return {"n": n, "rate": share, "low": (middle - half) / scale, "high": (middle + half) / scale}


def judge(
    player: Player, clips: Sequence[Clip], blocks: range, switch: int | None = None, seed: int = 0
) -> tuple[list[list[dict[str, bool]]], list[dict[str, float]]]:
    """Scores of every clip's objects in the wanted blocks, and PSNR against the renderer."""
    frames = torch.arange(first_frame(blocks.start), first_frame(blocks.stop))
    scores, found = [], []
    for clip, made in zip(clips, videos(player, clips, blocks, switch, seed), strict=True):
        asked, _ = render([clip], frames[None], (made.shape[-2], made.shape[-1]))
        scores.append(score(made, clip, frames))
        found.append(psnr(made, asked[0]))
    return scores, found


def medians(found: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Medians of values by name, with vidc's bootstrap intervals."""
    return {name: asdict(Summary.of([each[name] for each in found])) for name in found[0]}


def evaluate(
    player: Player, counts: dict[str, int], seed: int = 0, late: int = 100
) -> dict[str, Any]:
    """All figures by name; ``counts`` has the clips for ``prompts``, ``switch`` and ``long``."""
    clips = held_out(counts["prompts"], seed)
    scores, decibels = judge(player, clips, range(3), seed=seed)
    found: dict[str, Any] = {"psnr": medians(decibels)}
    found |= {name: rate(each) for name, each in hits_of(scores).items()}
    hits, decibels = [], []
    spread = [list(range(i, counts["switch"], 5)) for i in range(5)]
    for switch, share in zip((2, 3, 4, 5, 6), spread, strict=True):
        if share:
            clips = held_out(len(share), seed, switch)
            # The second block of the new prompt must be right.
            scores, part = judge(player, clips, range(switch + 1, switch + 2), switch, seed)
            hits += [_right(things) for things in scores]
            decibels += part
    found["switch"] = {**rate(hits), "psnr": medians(decibels)}
    clips = held_out(counts["long"], seed + 1)
    scores, part = judge(player, clips, range(max(0, late - LATE), late), seed=seed)
    found["long"] = {**rate([_right(things) for things in scores]), "psnr": medians(part)}
    found["missed"] = [
        name for name, least in TARGETS.items() if found.get(name, {"rate": 0})["rate"] < least
    ]
    return found


def hits_of(scores: Sequence[list[dict[str, bool]]]) -> dict[str, list[bool]]:
    """Hits of every object by attribute, and of every clip of two objects, from their scores."""
    found = {
        name: [thing[name] for things in scores for thing in things]
        for name in ("color", "shape", "direction", "place")
    }
    pairs = [_right(things) for things in scores if len(things) == 2]
    return {**found, "two objects": pairs} if pairs else found


def _right(things: Sequence[dict[str, bool]]) -> bool:
    return all(all(thing.values()) for thing in things)


def eager_bundle(weights: Path, folder: Path, batch: int, device: str) -> Any:
    """A bundle whose engines are PyTorch in float32, from exported weights."""
    from vidc.compiler.build.load import Load
    from vidc.compiler.cli.sources import SourceOptions
    from vidc.compiler.config.program import program_spec
    from vidc.compiler.store.stage import Workspace
    from vidc.compiler.validate.reference import eager_engines
    from vidc.plugins.names import TOKENIZER, weights_path
    from vidc.runtime.bundle import Bundle
    from vidc.runtime.graphs import Runners
    from vidc.runtime.programs.base import Resources
    from vidc.runtime.programs.causal_video import TEXT_ENCODER, CausalVideo
    from vidc.runtime.text import TextEncoder

    preset = weights / "preset.toml"
    config = Sizes.read(preset if preset.exists() else PRESET).config
    config = replace(config, text_encoder=None, stream=replace(config.stream, batch=batch))
    model, sources = SourceOptions(weights).resolve(config)
    files = {}
    for group, source in sources.checkpoints.items():
        (output := folder / group).mkdir()
        part = model.parts[group]
        tokenizer = sources.tokenizer if part.needs_tokenizer else None
        stage = Load(part, type(model), "fp32", source, tokenizer=tokenizer)
        stage.run(Workspace(output, {}, lambda line: print(line, file=sys.stderr)))
        files[group] = output / weights_path(group)
    where = torch.device(device)
    engines = eager_engines(model, files, dict.fromkeys(files, "fp32"), where)
    text = TextEncoder(
        engines.pop(TEXT_ENCODER), (folder / TEXT_ENCODER / TOKENIZER).read_bytes(), where
    )
    runners = Runners.on(where, captured=False)
    return Bundle(CausalVideo, Resources(program_spec(model), engines, where, runners, text))


def main() -> None:
    """Parses the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path, help="a bundle, or exported weights with --eager")
    parser.add_argument("--eager", action="store_true", help="play weights in PyTorch")
    parser.add_argument("--batch", type=int, default=1, help="videos side by side, with --eager")
    parser.add_argument("--decoder", help="vae or taehv; the bundle's first by default")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--late", type=int, default=100, help="blocks of a long run")
    parser.add_argument("--seed", type=int, default=0)
    for name, count in (("prompts", 200), ("switch", 100), ("long", 100)):
        parser.add_argument(f"--{name}", type=int, default=count, help="number of clips")
    options = parser.parse_args()
    counts = {name: getattr(options, name) for name in ("prompts", "switch", "long")}
    with TemporaryDirectory() as folder:
        if options.eager:
            bundle = eager_bundle(options.path, Path(folder), options.batch, options.device)
        else:
            from vidc.runtime import load

            bundle = load(options.path)
        with torch.no_grad():
            found = evaluate(Player(bundle, options.decoder), counts, options.seed, options.late)
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["missed"]))


if __name__ == "__main__":
    main()
