"""Times of attention kernels side by side: interleaved with a cold L2 cache, and back to back."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention_8bit.checks import Problem, exact, relative
from attention_8bit.inputs import Inputs
from attention_8bit.kernel import Attention
from vidc.compiler.bench.statistics import Summary
from vidc.runtime.strict import plain

ROUNDS = 50
WARM_UP = 5
FLUSH_BYTES = 256 * 2**20
BACK_TO_BACK = 200
"""Launches: long enough for the clock to settle at what the power allows."""


@dataclass(frozen=True)
class Contender:
    """One kernel and its inputs."""

    run: Callable[[], Any]
    output: Callable[[], Tensor]
    """Runs it and returns ``[B, T, H, D]``."""


def ours(name: str, attend: Attention, at: Problem, valid_length: int) -> dict[str, Contender]:
    """Ring attention of one format."""
    length = torch.tensor([valid_length], device=at.query.device)
    output = torch.empty(at.query.shape, dtype=torch.bfloat16, device=at.query.device)

    def run() -> Tensor:
        return attend(at.query, at.query_scale, at.ring, at.scales, length, output=output)

    return {name: Contender(run, run)}


def compare(contenders: dict[str, Contender], inputs: Inputs, valid_length: int) -> dict[str, Any]:
    """Medians in milliseconds, and relative errors against float64 of the same inputs."""
    contenders = dict(contenders)
    wanted = exact(inputs, valid_length)
    errors, problems = {}, {}
    for name, contender in list(contenders.items()):
        try:
            errors[name] = relative(contender.output(), wanted)
            for _ in range(WARM_UP):
                contender.run()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 (A rival that fails is left out.)
            problems[name] = repr(error)[:300]
            del contenders[name]
    del wanted
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=inputs.query.device)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, contender in contenders.items():
            flush.zero_()
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            contender.run()
            after.record()
            after.synchronize()
            times[name].append(before.elapsed_time(after))
    steady = {name: _back_to_back(contender.run) for name, contender in contenders.items()}
    batch, tokens, heads, head_dim = inputs.query.shape
    operations = 4 * batch * heads * tokens * valid_length * head_dim
    summaries = {name: Summary.of(found) for name, found in times.items()}
    medians = {name: summary.median for name, summary in summaries.items()}
    return {
        "valid_length": valid_length,
        "milliseconds": {name: round(median, 4) for name, median in medians.items()},
        "summaries": {name: plain(summary) for name, summary in summaries.items()},
        "samples": times,
        "back_to_back": {name: round(time, 4) for name, time in steady.items()},
        "tflops": {name: round(operations / m / 1e9) for name, m in medians.items()},
        "against_float64": {name: round(error, 5) for name, error in errors.items()},
        "failed": problems,
        "problem": None,
    }


def _back_to_back(run: Callable[[], Any]) -> float:
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    for _ in range(BACK_TO_BACK):
        run()
    after.record()
    after.synchronize()
    return before.elapsed_time(after) / BACK_TO_BACK
