"""Operator ``gate_residual``: adds a branch to the residual, gated by latent frame."""

import torch
from torch import Tensor

from vidc.plugins.arguments import FLOATS, Checks
from vidc.plugins.definition import define

_CHECKS = Checks("gate_residual")


def gate_residual_reference(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    """``x + update * gate``, computed in float32 and rounded once, to the dtype of ``x``.

    Args:
        x: ``[B, T, width]``, float32, bfloat16 or float16; the width a multiple of 8 up to 8192.
        update: the same shape, of any of these dtypes.
        gate: float32 ``[B, F, width]``: latent frame ``f`` has tokens ``f T / F`` and on.

    Returns:
        ``[B, T, width]``, the dtype of ``x``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    _check(x, update, gate)
    gates = gate[:, :, None].expand(-1, -1, x.shape[1] // gate.shape[1], -1).flatten(1, 2)
    return (x.float() + update.float() * gates).to(x.dtype)


def _fake(x: Tensor, update: Tensor, gate: Tensor) -> Tensor:
    _check(x, update, gate)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _check(x: Tensor, update: Tensor, gate: Tensor) -> None:
    _CHECKS.shape("x", x, ("B", "T", "width"))
    _CHECKS.dtype("x", x, FLOATS)
    _CHECKS.width("x", x.shape[2])
    _CHECKS.shape("update", update, x.shape)
    _CHECKS.dtype("update", update, FLOATS)
    _CHECKS.frames("gate", gate, x.shape)


gate_residual = define(
    "gate_residual(Tensor x, Tensor update, Tensor gate) -> Tensor", gate_residual_reference, _fake
)
