"""Times of attention kernels side by side: interleaved with a cold L2 cache, and back to back."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from attention_8bit.checks import Problem
from attention_8bit.kernel import Attention

ROUNDS = 50
WARM_UP = 5
FLUSH_BYTES = 256 * 2**20
BACK_TO_BACK = 200
"""Launches: long enough for the clock to settle at what the power allows."""


def compare(attend: Attention, at: Problem, valid_length: int) -> dict[str, Any]:
    """Medians in milliseconds, of INT8 ring attention and of what else the machine has."""
    contenders = {**_ours(attend, at, valid_length), **_others(at, valid_length)}
    problems = {}
    for name, run in list(contenders.items()):
        try:
            for _ in range(WARM_UP):
                run()
            torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 (A rival that fails is left out.)
            problems[name] = repr(error)[:300]
            del contenders[name]
    flush = torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=at.query.device)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(ROUNDS):
        for name, run in contenders.items():
            flush.zero_()
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            before.record()
            run()
            after.record()
            after.synchronize()
            times[name].append(before.elapsed_time(after))
    steady = {name: _back_to_back(run) for name, run in contenders.items()}
    batch, tokens, heads, head_dim = at.query.shape
    operations = 4 * batch * heads * tokens * valid_length * head_dim
    medians = {name: statistics.median(found) for name, found in times.items()}
    return {
        "valid_length": valid_length,
        "milliseconds": {name: round(median, 4) for name, median in medians.items()},
        "least": {name: round(min(found), 4) for name, found in times.items()},
        "back_to_back": {name: round(time, 4) for name, time in steady.items()},
        "tflops": {name: round(operations / m / 1e9) for name, m in medians.items()},
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


def _ours(attend: Attention, at: Problem, valid_length: int) -> dict[str, Callable[[], Any]]:
    length = torch.tensor([valid_length], device=at.query.device)
    output = torch.empty(at.query.shape, dtype=torch.bfloat16, device=at.query.device)

    def with_turns(turns: bool) -> Callable[[], Any]:
        return lambda: attend(
            at.query, at.query_scale, at.ring, at.scales, length, output=output, turns=turns
        )

    return {"int8": with_turns(False), "int8_turns": with_turns(True)}


def _others(at: Problem, valid_length: int) -> dict[str, Callable[[], Any]]:
    query = at.inputs.query.to(torch.bfloat16)
    key, value = (x[:, :valid_length].to(torch.bfloat16) for x in (at.inputs.key, at.inputs.value))
    heads_first = [x.transpose(1, 2) for x in (query, key, value)]

    def cudnn() -> Any:
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return scaled_dot_product_attention(*heads_first)

    found: dict[str, Callable[[], Any]] = {"bf16_cudnn": cudnn}
    try:
        from flash_attn.cute import flash_attn_func
    except Exception:  # noqa: BLE001 (Optional, and its imports can fail in many ways.)
        return found
    return {**found, "bf16_flash_attention_4": lambda: flash_attn_func(query, key, value)}
