"""Weights for work without a checkpoint: attention is peaked and every part matters."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vidc.exporters.draw import draw

QK_GAIN = 1.8
"""Scale of normalized queries and keys; the standard deviation of scores is its square."""


def random_weight(name: str, shape: Sequence[int], seed: int) -> Tensor:
    """One parameter, float32; it depends on the seed and its own name alone."""
    return _scaled(name, draw(name, shape, seed))


def _scaled(name: str, noise: Tensor) -> Tensor:
    if name.endswith(("attn1.norm_q.weight", "attn1.norm_k.weight")):
        return QK_GAIN * (1 + 0.1 * noise)
    if "norm" in name and name.endswith("weight"):
        return 1 + 0.1 * noise
    if name.endswith("scale_shift_table"):
        # Of shift, scale and gate, only the gates sit away from zero: they open every branch.
        offset = torch.zeros_like(noise)
        offset[:, 2::3] = 0.7
        return offset + 0.2 * noise
    if name.endswith("bias"):
        return 0.1 * noise
    gain = 0.3 if "time_proj" in name else 1.0
    return noise * (gain / math.sqrt(noise[0].numel()))
