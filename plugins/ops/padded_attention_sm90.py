"""Operator ``padded_attention_sm90``: ``padded_attention`` by a precompiled kernel.

Softmax attention to n equal keys is attention to one of them with ``ln(n)`` added to its logit, so
the kernel reads the distinct keys alone. It is FlashAttention-4's for sm_90, with a score
modification that adds the logarithm. ``flash_attention.load_kernel`` loads it.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define_composite
from vidc.plugins.ops.flash_attention import DTYPES_SM90, attend, check_memory, find_kernel
from vidc.plugins.ops.padded_attention import check_padded

OPERATOR = "padded_attention_sm90"
_CHECKS = Checks(OPERATOR)


def attend_to_distinct(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
    """Softmax attention to the keys of a text whose last distinct key is repeated to the end.

    The kernel reads ``length`` on the device, so one CUDA graph serves every length. The result is
    undefined if a length is not from 1 to ``S``. Keys and values from ``length`` on must be finite:
    some are multiplied by 0.

    Args:
        query: ``[B, T, H, D]``, bfloat16 or float16, contiguous, on a CUDA device.
        key: ``[B, S, H, D]``, the same dtype.
        value: ``[B, S, H, D]``, the same dtype.
        length: number of distinct keys of each sample, int32 ``[B]``.

    Returns:
        ``[B, T, H, D]``, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
        UnavailableError: ``VIDC-KERNEL-MISSING``, no kernel is loaded for this dtype, head size and
            device.
    """
    _check(query, key, value, length)
    check_memory(_CHECKS, query, key, value, "length", length)
    loaded = find_kernel(OPERATOR, query, merges_padding=True)
    tiles = -(-query.shape[1] // loaded.facts.tile_m)
    output = torch.empty_like(query)
    attend(loaded, query, key, value, output, length.contiguous(), tiles)
    return output


def _check(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> None:
    _CHECKS.dtype("query", query, DTYPES_SM90)
    check_padded(_CHECKS, query, key, value, length)


def _fake(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
    _check(query, key, value, length)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


padded_attention_sm90 = define_composite(
    f"{OPERATOR}(Tensor query, Tensor key, Tensor value, Tensor length) -> Tensor",
    attend_to_distinct,
    _fake,
)
