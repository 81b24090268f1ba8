"""What FP8 attention loses where the matrix units add up weights times values of one sign.

    export PYTHONPATH=benchmarks
    python -m attention_8bit.accumulation > benchmarks/attention_8bit/accumulation.json

Engines store values with their mean. Where that is ``offset`` standard deviations from zero, the
output grows with every key. A Hopper matrix unit keeps some 14 bits: it shifts what it adds to the
exponent of the largest and drops what is behind (DeepSeek-V3 Technical Report, section 3.5.2,
2024). Whether the sum so far counts as one of the terms is an assumption here, and no GPU has
confirmed it. ``in one`` is the other one: an instruction's 32 products and the sum so far are added
exactly, and the result is cut off.

Prints relative L2 against exact sums of the same 8-bit numbers: of sums over all keys, as the
kernel makes them, and of sums over fewer keys that are added in float32.
"""

import json
import math
from itertools import product

import torch
from torch import Tensor

from attention_8bit.emulation import E4M3, E4M3_AT_REFERENCE
from attention_8bit.numerics import DEPTH
from vidc.plugins.quantize import LARGEST

BITS = 13
"""Bits behind the first one of the largest term."""
QUERIES, HEAD_DIM = 8, 64
KEYS = (972, 4680, 9360, 14040, 18720)
OFFSETS = (0.0, 0.1, 0.3, 1.0)
KEYS_OF_SUM = (128, 1024)


def hopper_sum(
    weights: Tensor, values: Tensor, keys_of_sum: int | None = None, each: bool = True
) -> Tensor:
    """Returns ``weights @ values`` as the matrix units of a Hopper GPU may compute it.

    Args:
        weights: ``[T, S]``, values of E4M3.
        values: ``[S, D]``, values of E4M3.
        keys_of_sum: keys of one sum in the matrix units, a multiple of 32; None for all.
        each: True to cut off each product, False to cut off the sums of instructions.
    """
    total = weights.new_zeros(len(weights), values.shape[1])
    units = total
    for first in range(0, len(values), DEPTH):
        if keys_of_sum is not None and first % keys_of_sum == 0:
            total, units = total + units, torch.zeros_like(units)
        key = slice(first, first + DEPTH)
        terms = torch.cat([units[:, None], weights[:, key, None] * values[None, key]], 1)
        terms = terms if each else terms.sum(1, keepdim=True)
        # frexp's mantissa is below 1: its exponent is one above that of the first bit.
        exponent = torch.frexp(terms.abs().amax(1, keepdim=True)).exponent - 1 - BITS
        units = torch.ldexp(torch.ldexp(terms, -exponent).trunc(), exponent).sum(1)
    return total + units


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


def main() -> None:
    rows = [
        {"keys": keys, "offset": offset, "relative_l2": losses(keys, offset)}
        for keys, offset in product(KEYS, OFFSETS)
    ]
    print(json.dumps({"bits": BITS, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
