"""Whether a new prompt is followed while a stream runs, wherever in the stream it comes."""

import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from demo_model.clip import LATENT_STRIDE
from demo_model.evaluation.videos import Script, videos
from demo_model.score import score_switch
from demo_model.split import Split
from demo_model.switch import Switch, sample_switch
from vidc.runtime.bundle import Bundle

FOLLOWS = 0.8

BLOCKS = (2, 3, 4, 5, 6)
"""Blocks before a switch, case by case in turn.

With a window of four the ring is then not full yet, just full, or has wrapped: each has another
stretch recomputed.
"""

AFTER = 3
"""Blocks made after a switch: one to follow it in, and two to see whether it was followed."""


def batches(count: int, size: int) -> Iterator[tuple[int, Sequence[int]]]:
    """Cases whose switch comes after as many blocks, at most ``size`` at a time.

    Case ``n`` has its switch where ``BLOCKS`` says, whatever the size of a batch.

    Yields:
        The blocks before the switch, and the cases' numbers.
    """
    turns = len(BLOCKS)
    for first in range(0, count, turns * size):
        for turn, block in enumerate(BLOCKS):
            end = min(count, first + turns * size)
            if part := range(first + turn, end, turns):
                yield block, part


def switches(bundle: Bundle, count: int, seed: int) -> dict[str, Any]:
    """How often a new prompt is followed, and whether what it does not name stays.

    What is found of a batch goes to stderr at once, so that a run cut short leaves what it had.
    """
    rows: list[dict[str, Any]] = []
    for block, part in batches(count, bundle.spec.batch):
        cases = [sample_switch(Split.HELD_OUT, index) for index in part]
        frame = LATENT_STRIDE * (block * bundle.spec.block - 1) + 1
        scripts = [Script(*case.captions) for case in cases]
        made = videos(bundle, scripts, block + AFTER, seed + 1000 + part[0], block)
        for index, video, case in zip(part, made, cases, strict=True):
            rows.append({"case": index, "block": block, **_row(case, video, frame)})
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return summary(rows)


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares of cases, in all and by what the switch changes and when it comes."""
    others = [row for row in rows if row["others"]]

    def share(of: Sequence[dict[str, Any]], *what: str) -> float:
        return statistics.fmean(all(row[name] for name in what) for row in of)

    def by(key: str) -> dict[Any, list[dict[str, Any]]]:
        kinds = sorted({row[key] for row in rows})
        return {kind: [row for row in rows if row[key] == kind] for kind in kinds}

    both = share(rows, "follows", "stays")
    return {
        "cases": len(rows),
        "before": share(rows, "before"),
        "follows": share(rows, "follows"),
        "others": len(others),
        "others stay": share(others, "stays") if others else None,
        "follows and others stay": both,
        "follows by change": {kind: share(of, "follows") for kind, of in by("changed").items()},
        "by blocks before the switch": {
            str(block): {"cases": len(of), "follows and others stay": share(of, "follows", "stays")}
            for block, of in by("block").items()
        },
        "wrong": [
            {"case": row["case"], "block": row["block"], "prompts": row["prompts"]}
            for row in rows
            if not (row["follows"] and row["stays"])
        ],
        "asked": FOLLOWS,
        "passed": both >= FOLLOWS,
    }


def _row(case: Switch, video: Tensor, frame: int) -> dict[str, Any]:
    found = score_switch(video, frame, case)
    return {
        "changed": case.changed.value,
        "prompts": list(case.captions),
        "others": len(case.after.things) > 1,
        **vars(found),
    }
