"""Emulates what sums in the matrix units of a Hopper GPU lose in FP8 attention.

    export PYTHONPATH=benchmarks
    python -m attention_8bit.accumulation > benchmarks/attention_8bit/accumulation.json

Where attention is even and values have a mean, the sum of weights times values grows with every
key. A Hopper matrix unit keeps some 14 bits: it shifts what it adds to the exponent of the largest
term and drops what is behind (DeepSeek-V3 Technical Report, section 3.5.2, 2024). ``each`` takes
the sum so far as one of the terms. ``in one`` adds an instruction's 32 products and the sum so far
exactly, and cuts off the result.

Prints three studies as JSON. ``offset`` is in standard deviations of the values.

- ``even``: relative L2 against exact sums of the same 8-bit numbers, for normal logits and channel
  means drawn with a deviation of ``offset``; of one sum over all keys in the matrix units, and of
  sums over fewer keys that are added in float32. The kernel's sums are over 128 keys.
- ``parts``: the share of the output that sums over a sixteenth of the keys lose, for equal weights
  and a mean of ``offset`` in every channel, beside what an H100 measured of a kernel with such
  sums.
- ``cudnn``: relative L2 against float64 on ``inputs.draw`` of attention as cuDNN computes it in
  FP8, with values that are not centered, beside what an H200 measured.

The last two tell the two ways to round apart.
"""

import json
import math
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path

import torch
from torch import Tensor

from attention_8bit.emulation import E4M3, E4M3_AT_REFERENCE
from attention_8bit.inputs import draw
from attention_8bit.numerics import (
    BLOCK,
    DEPTH,
    E4M3_LARGEST,
    PLAIN,
    Head,
    attend,
    e4m3,
    e4m3_scaled,
    heads,
    logits,
    rounded_weights,
    truth,
)
from vidc.plugins.quantize import LARGEST

BITS = 13
"""Bits behind the first one of the largest term."""
QUERIES, HEAD_DIM = 8, 64
KEYS = (972, 4680, 9360, 14040, 18720)
OFFSETS = (0.0, 0.1, 0.3, 1.0)
KEYS_OF_SUM = (128, 1024)
RESULTS = Path(__file__).parents[1] / "results"
OF_PARTS, OF_CUDNN = "attention-8bit-sums-h100.json", "attention-8bit-cudnn-h200.json"
MEASURED_QUERIES, MEASURED_HEADS = 32, 4
PARTS = 16
"""Parts of the keys that the kernel sums alone where a GPU has more multiprocessors than tiles."""


def hopper_sum(
    weights: Tensor, values: Tensor, keys_of_sum: int | None = None, each: bool = True
) -> Tensor:
    """Returns ``weights @ values`` as the matrix units of a Hopper GPU may compute it.

    Args:
        weights: ``[T, S]``, values of E4M3.
        values: ``[S, D]``, values of E4M3.
        keys_of_sum: keys of one sum in the matrix units, a multiple of 32; None for all.
        each: True to cut off each term, False to cut off the sums of instructions.
    """
    total = weights.new_zeros(len(weights), values.shape[1])
    step = len(values) if keys_of_sum is None else keys_of_sum
    for first in range(0, len(values), step):
        keys = slice(first, first + step)
        units = added(torch.zeros_like(total), weights[:, keys], values[keys], each)
        total = total + units
    return total


def added(units: Tensor, weights: Tensor, values: Tensor, each: bool) -> Tensor:
    """Returns the sum in the matrix units after more keys; arguments as for ``hopper_sum``."""
    for first in range(0, len(values), DEPTH):
        key = slice(first, first + DEPTH)
        terms = torch.cat([units[:, None], weights[:, key, None] * values[None, key]], 1)
        terms = terms if each else terms.sum(1, keepdim=True)
        # frexp's mantissa is below 1: its exponent is one above that of the first bit.
        exponent = torch.frexp(terms.abs().amax(1, keepdim=True)).exponent - 1 - BITS
        units = torch.ldexp(torch.ldexp(terms, -exponent).trunc(), exponent).sum(1)
    return units


def losses(keys: int, offset: float) -> dict[str, float]:
    """Returns the relative L2 of each way to sum, for normal logits and values."""
    generator = torch.Generator().manual_seed(keys)
    logits = torch.randn(QUERIES, keys, generator=generator) / math.log(2)
    weights = torch.exp2(logits - logits.amax(1, keepdim=True) + E4M3_AT_REFERENCE).to(E4M3).float()
    values = torch.randn(keys, HEAD_DIM, generator=generator)
    values += offset * torch.randn(HEAD_DIM, generator=generator)
    stored = (values / values.abs().amax() * LARGEST[E4M3]).to(E4M3).float()
    exact = weights @ stored
    found = {
        "all keys": hopper_sum(weights, stored),
        "all keys, in one": hopper_sum(weights, stored, each=False),
        **{f"{of} keys": hopper_sum(weights, stored, of) for of in KEYS_OF_SUM},
    }
    return {
        name: round(float((result - exact).norm() / exact.norm()), 4)
        for name, result in found.items()
    }


def loss_of_parts(keys: int, offset: float, each: bool) -> float:
    """Returns the share of the mean output that sums over parts of the keys lose, for even weights.

    The values are as in the measurement: normal, times 64, in E4M3.
    """
    generator = torch.Generator().manual_seed(keys)
    values = 64 * (torch.randn(keys, HEAD_DIM, generator=generator) + offset)
    stored = values.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(E4M3).float()
    weights = torch.full((1, keys), 2.0**E4M3_AT_REFERENCE)
    blocks = math.ceil(keys / BLOCK)
    parts = min(PARTS, blocks)
    ends = [BLOCK * (blocks * part // parts) for part in range(parts + 1)]
    sums = [hopper_sum(weights[:, a:b], stored[a:b], each=each) for a, b in pairwise(ends)]
    exact = weights.double() @ stored.double()
    return 1 - float(torch.stack(sums).double().sum() / exact.sum())


def parts_rows() -> list[dict[str, float]]:
    """Returns the share that is lost by number of keys: measured, and emulated both ways."""
    rows = []
    for record in json.loads((RESULTS / OF_PARTS).read_text())["rows"]:
        keys, offset = record["keys"], record["offset"]
        if offset:
            lost = {
                "measured": 1 - record["output"] / record["exact"],
                "each": loss_of_parts(keys, offset, True),
                "in one": loss_of_parts(keys, offset, False),
            }
            shares = {name: round(share, 5) for name, share in lost.items()}
            rows.append({"keys": keys, "offset": offset, **shares})
    return rows


def plain_attention(head: Head, each: bool) -> Tensor:
    """Returns attention ``[T, D]`` in FP8 with a scale for each tensor, values not centered."""
    scores = logits(head, PLAIN)
    largest = head.value.abs().amax() / E4M3_LARGEST
    stored = e4m3(head.value / largest)
    units = torch.zeros_like(head.query)
    total = torch.zeros(len(head.query), 1)
    running = torch.full_like(total, -torch.inf)
    for first in range(0, scores.shape[1], BLOCK):
        block = scores[:, first : first + BLOCK]
        before, running = running, torch.maximum(running, block.amax(1, keepdim=True))
        weights = rounded_weights(block, running, PLAIN)
        shrink = torch.exp(before - running)
        units = added(units * shrink, weights, stored[first : first + BLOCK], each)
        total = total * shrink + weights.sum(1, keepdim=True)
    return rounded(head, units / total * largest)


def rounded(head: Head, output: Tensor) -> Tensor:
    """Returns an output in E4M3 with the scale of the values, as cuDNN's is."""
    return e4m3_scaled(output, head.value.abs().amax() / E4M3_LARGEST)


def cudnn_rows() -> list[dict[str, float]]:
    """Returns relative L2 over all heads by number of keys: measured, and emulated both ways."""
    records = json.loads((RESULTS / OF_CUDNN).read_text())["timing"]["records"]
    drawn = draw(MEASURED_QUERIES, max(KEYS), MEASURED_HEADS, 128)
    rows = []
    for record in reversed(records):
        keys = record["valid_length"]
        cut = [
            replace(head, key=head.key[:keys], value=head.value[:keys])
            for head in heads(drawn, PLAIN.balance)
        ]
        exact = torch.stack([truth(head) for head in cut])
        row = {"keys": keys, "measured": round(record["against_float64"]["fp8_cudnn"], 4)}
        ways = {
            "each": [plain_attention(head, True) for head in cut],
            "in one": [plain_attention(head, False) for head in cut],
            "exact sums": [rounded(head, attend(head, PLAIN)) for head in cut],
        }
        for name, outputs in ways.items():
            found = torch.stack(outputs)
            row[name] = round(float((found - exact).norm() / exact.norm()), 4)
        rows.append(row)
    return rows


def main() -> None:
    even = [
        {"keys": keys, "offset": offset, "relative_l2": losses(keys, offset)}
        for keys, offset in product(KEYS, OFFSETS)
    ]
    result = {"bits": BITS, "torch": torch.__version__, "even": even}
    print(json.dumps(result | {"parts": parts_rows(), "cudnn": cudnn_rows()}, indent=1))


if __name__ == "__main__":
    main()
