"""Counts how often the scorer is right on clips whose attributes are known, clean and damaged.

    PYTHONPATH=benchmarks python -m demo_model.check_scorer > scorer.json

Exits 1 where it is right less often than its users rely on: 99 % on clean clips, around block 100
and at switches too, 97 % on damaged ones, and never an object or a switch where there is none.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from demo_model.attributes import Background, Rotation
from demo_model.background import background_psnr
from demo_model.clip import frames_of
from demo_model.damage import as_jpeg, blurred, noisy
from demo_model.evaluation.measures import BACKGROUND_DB, EARLY, LATE, Counts
from demo_model.evaluation.switches import AFTER, BLOCKS
from demo_model.find import find
from demo_model.light import PERIOD
from demo_model.render import render
from demo_model.score import BLOCK, read, score, score_switch
from demo_model.split import Split, distinct, sample
from demo_model.switch import sample_switch
from demo_model.textures import grounds
from vidc.compiler.bench.fingerprint import fingerprint

DAMAGES: dict[str, Callable[[Tensor, int], Tensor]] = {
    "clean": lambda clip, seed: clip,
    "noise 0.05 and blur 1": lambda clip, seed: noisy(blurred(clip, 1.0), 0.05, seed),
    "noise 0.15": lambda clip, seed: noisy(clip, 0.15, seed),
    "blur 2": lambda clip, seed: blurred(clip, 2.0),
    "JPEG 50": lambda clip, seed: as_jpeg(clip, 50),
    "JPEG 25": lambda clip, seed: as_jpeg(clip, 25),
}

REQUIRED = {"clean": 0.99, "noise 0.05 and blur 1": 0.97, "blur 2": 0.97, "JPEG 50": 0.97}


def examples(count: int) -> Iterator[tuple[int, Split]]:
    for index in range(count):
        yield index, (Split.TRAIN, Split.HELD_OUT)[index % 2]


def check_clips(count: int, frames: int, damage: str) -> dict[str, float]:
    things = color = shape = direction = extra = 0
    for index, split in examples(count):
        example = sample(split, index)
        clip = DAMAGES[damage](render([example.clip], frames)[0], index)
        readings = read(clip)
        scores = score(readings, example.scene)
        extra += max(0, len(readings) - len(scores))
        things += len(scores)
        color += sum(one.color for one in scores)
        shape += sum(one.shape for one in scores)
        direction += sum(one.direction for one in scores)
    return {
        "objects": things,
        "color": color / things,
        "shape": shape / things,
        "direction": direction / things,
        "objects too many": extra,
    }


def check_switches(count: int) -> dict[str, float]:
    """Switches where the evaluation has them, followed and not."""
    before = follows = stays = unswitched = 0
    for index, split in examples(count):
        switch = sample_switch(split, index)
        made = BLOCKS[index % len(BLOCKS)]
        frame, frames = frames_of(3 * made), frames_of(3 * (made + AFTER))
        clips = [switch.clip(frame), switch.before.clip]
        told, ignored = (score_switch(c, frame, switch) for c in render(clips, frames))
        before += told.before
        follows += told.follows
        stays += told.stays
        unswitched += ignored.follows
    return {
        "before": before / count,
        "follows": follows / count,
        "stays": stays / count,
        "follows without a switch": unswitched / count,
    }


def check_absent(count: int) -> dict[str, float]:
    """Readings of clips that have no object; each should be 0."""
    names = ("background", "white noise", "colored blobs", "one color", "blobs")
    found: dict[str, float] = dict.fromkeys(names, 0)
    for index in range(count):
        background = list(Background)[index % len(Background)]
        ground = grounds([background], [index], 128, 128, torch.device("cpu"))[0] * 2 - 1
        still = ground.permute(2, 0, 1)[:, None].expand(-1, 13, -1, -1)
        found["background"] += len(find(noisy(still, 0.05, index)))
        draw = torch.Generator().manual_seed(index)
        found["white noise"] += len(find(torch.rand(3, 13, 128, 128, generator=draw) * 2 - 1))
        coarse = torch.randn(3, 13, 16, 16, generator=draw) * 2
        smooth = torch.nn.functional.interpolate(coarse, size=(128, 128), mode="bicubic")
        moving = [reading.shape for reading in read(smooth.clamp(-1, 1))]
        found["colored blobs"] += sum(shape is not None for shape in moving)
        flat = torch.rand(3, 1, 1, 1, generator=draw) * 2 - 1
        found["one color"] += len(find(flat.expand(-1, 13, 128, 128)))
        frozen = [r.direction for r in read(smooth[:, :1].expand(-1, 13, -1, -1).clamp(-1, 1))]
        found["blobs"] += sum(direction is not None for direction in frozen)
    return found


def check_long(count: int) -> dict[str, float]:
    """The prompts of the evaluation's long runs, read where it reads them last.

    Backgrounds are compared between its two blocks, as there.
    """
    if (LATE - EARLY) * BLOCK % PERIOD:
        raise ValueError(f"blocks {EARLY} and {LATE} are not under the same light")
    least, share = float("inf"), 1.0
    right = spinning = spinning_right = 0
    for example in distinct(Split.HELD_OUT, count):
        early, last = (
            render([example.clip], blocks * BLOCK, first=frames_of(3 * end) - blocks * BLOCK)[0]
            for blocks, end in ((1, EARLY), (EARLY, LATE))
        )
        compared = background_psnr(early, last[:, -BLOCK:])
        least, share = min(least, compared.db), min(share, compared.share)
        scores = score(read(last), example.scene)
        right += all(one.right == 3 for one in scores)
        for one, thing in zip(scores, example.scene.things, strict=True):
            if thing.rotation is Rotation.SPINNING:
                spinning += 1
                spinning_right += one.right == 3
    return {
        "runs": count,
        "right": right / count,
        "objects that spin": spinning,
        "of these right": spinning_right / spinning if spinning else 1.0,
        "least background PSNR, dB": least,
        "least share": share,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=100)
    parser.add_argument("--frames", type=int, default=frames_of(7))
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, passed = check(options.clips, options.frames)
    document = {"schema": 1, "clips": options.clips, **found, "passed": passed}
    print(json.dumps({**document, "fingerprint": fingerprint()}, indent=1))
    return 0 if passed else 1


def check(clips: int, frames: int) -> tuple[dict[str, dict[str, float]], bool]:
    """All that is counted, and whether the scorer is right as often as is asked."""
    found: dict[str, dict[str, float]] = {}
    asked: list[bool] = []

    def take(name: str, rates: dict[str, float], least: float, *judged: str) -> None:
        found[name] = rates
        asked.append(all(rates[what] >= least for what in judged))
        print(json.dumps({name: rates}), file=sys.stderr, flush=True)

    each = ("color", "shape", "direction")
    clean = REQUIRED["clean"]
    take("switches", check_switches(Counts.switches), clean, "before", "follows", "stays")
    take("long", check_long(Counts.runs), clean, "right", "of these right")
    for damage in DAMAGES:
        take(damage, check_clips(clips, frames, damage), REQUIRED.get(damage, 0.0), *each)
    take("clean, 241 frames", check_clips(clips // 10, 241, "clean"), clean, *each)
    take("without objects", check_absent(clips // 2), 0.0)
    unseen = (*found["without objects"].values(), found["switches"]["follows without a switch"])
    decibels = found["long"]["least background PSNR, dB"]
    return found, all(asked) and not any(unseen) and decibels >= BACKGROUND_DB


if __name__ == "__main__":
    sys.exit(main())
