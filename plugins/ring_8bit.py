"""A ring of 8 bits in plain PyTorch: its values restored, and attention to its numbers.

Numbers are INT8 or FP8 (E4M3), all of a ring alike; the truth that kernels are held to. What the
kernel takes is in ``cuda/ring_attention.h``, how values lie in memory in ``transposed_values.py``.
"""

import torch
from torch import Tensor

from vidc.plugins.transposed_values import stored_at


def restore_values(transposed: Tensor, slots: int) -> Tensor:
    """Values ``[B, S, H, D]`` of the first slots of ``[B, H, D, S']``, as rings store them."""
    # As bytes: PyTorch does not index FP8 on a CPU.
    places = stored_at(torch.arange(slots, device=transposed.device))
    values = transposed.view(torch.int8)[..., places]
    return values.permute(0, 3, 1, 2).contiguous().view(transposed.dtype)


def attend(
    query: Tensor,
    query_scale: Tensor,
    key: Tensor,
    value: Tensor,
    key_scale: Tensor,
    value_scale: Tensor,
    value_mean: Tensor,
    dtype: torch.dtype,
) -> Tensor:
    """Attention with 8-bit numbers and exact weights.

    What a kernel adds to the error of these numbers shows against this.

    Args:
        query: ``[B, T, H, D]``.
        query_scale: ``[B, H, T]``.
        key: ``[B, S, H, D]``, all of which count.
        value: ``[B, S, H, D]``, not transposed.
        key_scale: ``[H]``.
        value_scale: ``[H, D]``.
        value_mean: ``[H, D]``.
        dtype: that it is computed in.

    Returns:
        ``[B, T, H, D]`` of ``dtype``.
    """
    keys = key.to(dtype) * key_scale[:, None].to(dtype)
    values = value.to(dtype) * value_scale.to(dtype) + value_mean.to(dtype)
    queries = query.to(dtype) * query_scale.mT[..., None].to(dtype)
    logits = torch.einsum("bthd,bshd->bhts", queries, keys) / query.shape[3] ** 0.5
    return torch.einsum("bhts,bshd->bthd", torch.softmax(logits, dim=3), values)
