"""What FP8 attention loses where the matrix units add up weights times values of one sign.

    export PYTHONPATH=benchmarks
    python -m attention_8bit.accumulation > benchmarks/attention_8bit/accumulation.json

Values are stored without a static mean. Where the mean of a ring is another one, by ``offset``
standard deviations of its values, the output grows with every key. A Hopper matrix unit aligns the
32 products of an instruction and the sum so far to the largest of them, and drops what lies more
than 13 bits below it (DeepSeek-V3 Technical Report, section 3.5.2, 2024). Prints relative L2
against exact sums of the same 8-bit numbers: of sums over all keys, as the kernel makes them, and
of sums over ``keys_of_sum`` keys that are added in float32.
"""

import json
import math
from itertools import product

import torch
from torch import Tensor

from vidc.plugins.quantize import LARGEST

BITS = 13
DEPTH = 32
"""Products of one instruction."""
E4M3 = torch.float8_e4m3fn
AT_LARGEST = 7.0
"""Base-2 logarithm of a row's largest weight."""
QUERIES, HEAD_DIM = 8, 64
KEYS = (972, 4680, 9360, 14040, 18720)
OFFSETS = (0.0, 0.1, 0.3, 1.0)
KEYS_OF_SUM = (128, 1024)


def hopper_sum(weights: Tensor, values: Tensor, keys_of_sum: int | None = None) -> Tensor:
    """Returns ``weights @ values`` as the matrix units of a Hopper GPU compute it.

    Args:
        weights: ``[T, S]``, values of E4M3.
        values: ``[S, D]``, values of E4M3.
        keys_of_sum: keys of one sum in the matrix units, a multiple of 32; None for all.
    """
    total = weights.new_zeros(len(weights), values.shape[1])
    units = total
    for first in range(0, len(values), DEPTH):
        if keys_of_sum is not None and first % keys_of_sum == 0:
            total, units = total + units, torch.zeros_like(units)
        key = slice(first, first + DEPTH)
        terms = torch.cat([units[:, None], weights[:, key, None] * values[None, key]], 1)
        largest = terms.abs().amax(1, keepdim=True).clamp(min=torch.finfo(terms.dtype).tiny)
        step = torch.exp2(largest.log2().floor() - BITS)
        units = ((terms / step).trunc() * step).sum(1)
    return total + units


def losses(keys: int, offset: float) -> dict[str, float]:
    """Returns the relative L2 of each way to sum, for normal logits and values."""
    generator = torch.Generator().manual_seed(keys)
    logits = torch.randn(QUERIES, keys, generator=generator) / math.log(2)
    weights = torch.exp2(logits - logits.amax(1, keepdim=True) + AT_LARGEST).to(E4M3).float()
    values = torch.randn(keys, HEAD_DIM, generator=generator)
    values += offset * torch.randn(HEAD_DIM, generator=generator)
    stored = (values / values.abs().amax() * LARGEST[E4M3]).to(E4M3).float()
    exact = weights @ stored
    return {
        "all keys" if of is None else f"{of} keys": round(
            float((hopper_sum(weights, stored, of) - exact).norm() / exact.norm()), 4
        )
        for of in (None, *KEYS_OF_SUM)
    }


def main() -> None:
    rows = [
        {"keys": keys, "offset": offset, "relative_l2": losses(keys, offset)}
        for keys, offset in product(KEYS, OFFSETS)
    ]
    print(json.dumps({"bits": BITS, "torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
