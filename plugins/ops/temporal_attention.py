"""Operator ``temporal_attention``: attention over the few frames of a clip, pixel by pixel."""

import torch
from torch import Tensor
from torch.nn import functional

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define

HEAD_DIM = 64
MOST_FRAMES = 32
"""Keys of two matrix tiles."""
MOST_ITEMS = 2**30
"""Warps of a launch: one for each pixel and head."""
_CHECKS = Checks("temporal_attention")


def temporal_attention_reference(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Softmax attention over T, for each pixel and head; computed in float32.

    The kernel rounds softmax weights to the dtype, as attention kernels do.

    Args:
        query: ``[N, T, P, H, 64]``, bfloat16 or float16; T is at most 32, and N P H at
            most 2^30. Either N counts videos and P pixels, and a pixel's frames are ``64 H P``
            elements apart; or N counts the pixels of all videos and P is 1, and a pixel's frames
            are next to each other.
        key: of the same shape and dtype.
        value: of the same shape and dtype.

    Returns:
        ``[N, T, P, H, 64]``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(query, key, value)
    q, k, v = (x.float().permute(0, 2, 3, 1, 4) for x in (query, key, value))
    attended = functional.scaled_dot_product_attention(q, k, v)
    return attended.permute(0, 3, 1, 2, 4).to(
        query.dtype, memory_format=torch.contiguous_format, copy=True
    )


def _fake(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    _check(query, key, value)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    _CHECKS.shape("query", query, ("N", "T", "P", "H", HEAD_DIM))
    _CHECKS.that(
        query.shape[1] <= MOST_FRAMES, "query", f"at most {MOST_FRAMES} frames", query.shape[1]
    )
    items = query.shape[0] * query.shape[2] * query.shape[3]
    _CHECKS.that(items <= MOST_ITEMS, "query", f"N P H at most {MOST_ITEMS}", items)
    _CHECKS.dtype("query", query, (torch.bfloat16, torch.float16))
    for name, tensor in (("key", key), ("value", value)):
        _CHECKS.shape(name, tensor, tuple(query.shape))
        _CHECKS.dtype(name, tensor, (query.dtype,))


temporal_attention = define(
    "temporal_attention(Tensor query, Tensor key, Tensor value) -> Tensor",
    temporal_attention_reference,
    _fake,
)
