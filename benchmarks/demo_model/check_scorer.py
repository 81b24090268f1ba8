"""Counts how often the scorer is right on clips whose attributes are known, clean and damaged.

    PYTHONPATH=benchmarks python -m demo_model.check_scorer --clips 1000

Exits 1 where it is right less often than its users rely on: 99 % on clean clips, 97 % on damaged
ones, and never an object where there is none.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from demo_model.attributes import Background
from demo_model.background import background_psnr
from demo_model.clip import frames_of
from demo_model.damage import as_jpeg, blurred, noisy
from demo_model.find import find
from demo_model.light import PERIOD
from demo_model.render import render
from demo_model.score import BLOCK, read, score, score_switch
from demo_model.split import Split, sample
from demo_model.switch import sample_switch
from demo_model.textures import grounds

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
    things = colour = shape = direction = extra = 0
    for index, split in examples(count):
        example = sample(split, index)
        clip = DAMAGES[damage](render([example.clip], frames)[0], index)
        readings = read(clip)
        scores = score(readings, example.scene)
        extra += max(0, len(readings) - len(scores))
        things += len(scores)
        colour += sum(one.colour for one in scores)
        shape += sum(one.shape for one in scores)
        direction += sum(one.direction for one in scores)
    return {
        "objects": things,
        "colour": colour / things,
        "shape": shape / things,
        "direction": direction / things,
        "objects too many": extra,
    }


def check_switches(count: int) -> dict[str, float]:
    before = follows = stays = unswitched = 0
    for index, split in examples(count):
        switch = sample_switch(split, index)
        frame = random.Random(index).randrange(24, 60)
        clips = [switch.clip(frame), switch.before.clip]
        told, ignored = (score_switch(c, frame, switch) for c in render(clips, frame + 36))
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


def check_absent(count: int) -> dict[str, int]:
    """Readings of clips that have no object; each should be 0."""
    found = {"background": 0, "white noise": 0, "coloured blobs": 0, "one colour": 0, "blobs": 0}
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
        found["coloured blobs"] += sum(shape is not None for shape in moving)
        flat = torch.rand(3, 1, 1, 1, generator=draw) * 2 - 1
        found["one colour"] += len(find(flat.expand(-1, 13, 128, 128)))
        frozen = [r.direction for r in read(smooth[:, :1].expand(-1, 13, -1, -1).clamp(-1, 1))]
        found["blobs"] += sum(direction is not None for direction in frozen)
    return found


def check_long(count: int) -> dict[str, float]:
    """The least PSNR between backgrounds of blocks 5 and 100, and whether prompts still hold."""
    least, right, things, share = float("inf"), 0, 0, 1.0
    for index, split in examples(count):
        example = sample(split, index)
        early, late = (
            render([example.clip], BLOCK, first=frames_of(3 * block) - BLOCK)[0]
            for block in (5, 100)
        )
        assert (100 - 5) * BLOCK % PERIOD == 0
        compared = background_psnr(early, late)
        least, share = min(least, compared.db), min(share, compared.share)
        scores = score(read(late), example.scene)
        right += sum(one.right for one in scores)
        things += 3 * len(scores)
    return {"least background PSNR, dB": least, "least share": share, "right": right / things}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=300)
    parser.add_argument("--frames", type=int, default=frames_of(7))
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    passed = True
    for damage in DAMAGES:
        rates = check_clips(options.clips, options.frames, damage)
        print(json.dumps({"clips": damage, **rates}), flush=True)
        required = REQUIRED.get(damage, 0.0)
        passed &= min(rates["colour"], rates["shape"], rates["direction"]) >= required
    rates = check_clips(options.clips // 10, 241, "clean")
    print(json.dumps({"clips": "clean, 241 frames", **rates}), flush=True)
    passed &= min(rates["colour"], rates["shape"], rates["direction"]) >= REQUIRED["clean"]
    print(json.dumps({"switches": check_switches(options.clips // 2)}), flush=True)
    print(json.dumps({"without objects": (absent := check_absent(options.clips // 2))}), flush=True)
    passed &= not any(absent.values())
    print(json.dumps({"long": check_long(options.clips // 5)}), flush=True)
    print(f"{'passed' if passed else 'FAILED'} in {time.perf_counter() - started:.0f} s")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
