"""Static scales of an 8-bit ring from samples, as a calibration over a rollout would find them."""

import torch
from torch import Tensor

from attention_8bit.ring import RingScales
from vidc.plugins.quantize import LARGEST

BALANCE = 0.5
"""Share of an outlying pair of channels that moves from the keys to the queries, up to 1."""


def calibrate(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dtype: torch.dtype = torch.int8,
    balance: float = BALANCE,
) -> RingScales:
    """Scales for queries, keys and values ``[B, T, H, D]`` like these."""
    key_mean = key.mean(dim=(0, 1))
    centered = key - key_mean
    smooth = _largest_of_pairs(centered) ** balance / _largest_of_pairs(query) ** (1 - balance)
    value_mean = value.mean(dim=(0, 1))
    return RingScales(
        smooth=smooth,
        key_mean=key_mean,
        key_scale=(centered / smooth).abs().amax(dim=(0, 1, 3)) / LARGEST[dtype],
        value_mean=value_mean,
        value_scale=(value - value_mean).abs().amax(dim=(0, 1)) / LARGEST[dtype],
    )


def _largest_of_pairs(x: Tensor) -> Tensor:
    largest = x.abs().amax(dim=(0, 1)).unflatten(1, (-1, 2)).amax(dim=2)
    return largest.clamp(min=torch.finfo(torch.float32).tiny).repeat_interleave(2, dim=1)
