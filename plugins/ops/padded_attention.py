"""Operator ``padded_attention``: attention to the keys of a text that ends in equal padding.

Padding tokens of a prompt have equal embeddings, and keys of text have no position, so all keys of
the padding are equal, and so are their values.
"""

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vidc.plugins.arguments import Checks
from vidc.plugins.definition import define_composite

_CHECKS = Checks("padded_attention")


def padded_attention_reference(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
    """Softmax attention to the keys of a text whose last distinct key is repeated to the end.

    Keys and values from ``length`` on are not read: they are taken to equal those before them.

    Args:
        query: ``[B, T, H, D]``.
        key: ``[B, S, H, D]``, same dtype.
        value: ``[B, S, H, D]``, same dtype.
        length: number of distinct keys of each sample, from 1 to ``S``, int32 ``[B]``.

    Returns:
        ``[B, T, H, D]``, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    check_padded(_CHECKS, query, key, value, length)
    batch, slots = key.shape[:2]
    every = torch.arange(slots, dtype=torch.int64, device=key.device)
    places = torch.minimum(every, length[:, None].to(torch.int64) - 1)
    first = slots * torch.arange(batch, dtype=torch.int64, device=key.device)
    # Of all samples, so that this is one Gather in ONNX.
    rows = (first[:, None] + places).flatten()
    keys, values = (x.flatten(0, 1).index_select(0, rows).view_as(x) for x in (key, value))
    return scaled_dot_product_attention(
        query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2)
    ).transpose(1, 2)


def check_padded(checks: Checks, query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> None:
    """Checks what all operators that compute ``padded_attention`` ask of their arguments.

    Args:
        checks: of the operator.
        query: as in ``padded_attention_reference``, like the next three.
        key: keys of the text.
        value: values of the text.
        length: numbers of distinct keys.
    """
    checks.shape("query", query, ("B", "T", "H", "D"))
    batch, _, *row = query.shape
    checks.shape("key", key, (batch, "S", *row))
    checks.shape("value", value, (batch, key.shape[1], *row))
    for name, tensor in (("key", key), ("value", value)):
        checks.dtype(name, tensor, (query.dtype,))
    checks.shape("length", length, (batch,))
    checks.dtype("length", length, (torch.int32,))


def _fake(query: Tensor, key: Tensor, value: Tensor, length: Tensor) -> Tensor:
    check_padded(_CHECKS, query, key, value, length)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


padded_attention = define_composite(
    "padded_attention(Tensor query, Tensor key, Tensor value, Tensor length) -> Tensor",
    padded_attention_reference,
    _fake,
)
