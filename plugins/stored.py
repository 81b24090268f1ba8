"""Operators ``stored`` and ``restored``: keys or values as a ring of 8 bits keeps them, and back.

Queries to such a ring stay in 16 or 32 bits. What is restored lacks the mean that was taken off
before: softmax does not see it, for it is one for all keys. No kernel is their own: every backend
opens them up.
"""

import torch
from torch import Tensor

from vidc.plugins.arguments import FLOATS, Checks, dtype_name
from vidc.plugins.quantize import LARGEST, quantize

_STORED, _RESTORED = Checks("stored"), Checks("restored")
_FORMATS = {dtype_name(dtype): dtype for dtype in LARGEST}
_OUTPUTS = {dtype_name(dtype): dtype for dtype in FLOATS}


def stored_reference(x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str) -> Tensor:
    """The nearest numbers of 8 bits, which times their scale are the values less their mean.

    Args:
        x: ``[B, T, H, D]``, float32, bfloat16 or float16.
        scale: of each head, float32 ``[H]``, positive.
        mean: float32 ``[H, D]``; None for zeros.
        dtype: of the numbers: float8_e4m3fn or int8.

    Returns:
        ``[B, T, H, D]`` of ``dtype``.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    to = _check_stored(x, scale, mean, dtype)
    values = x.float() if mean is None else x.float() - mean
    return quantize(values, scale[:, None], to)


def restored_reference(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    """The values that a ring of 8 bits stands for, less their mean.

    Args:
        x: ``[B, S, H, D]``, float8_e4m3fn or int8.
        scale: of each head, float32 ``[H]``.
        dtype: of the values: float32, bfloat16 or float16.

    Returns:
        ``[B, S, H, D]`` of ``dtype``, rounded once.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
    """
    return (x.float() * scale[:, None]).to(_check_restored(x, scale, dtype))


def _stored_fake(x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str) -> Tensor:
    return x.new_empty(x.shape, dtype=_check_stored(x, scale, mean, dtype))


def _restored_fake(x: Tensor, scale: Tensor, dtype: str) -> Tensor:
    return x.new_empty(x.shape, dtype=_check_restored(x, scale, dtype))


def _check_stored(x: Tensor, scale: Tensor, mean: Tensor | None, dtype: str) -> torch.dtype:
    _STORED.shape("x", x, ("B", "T", "H", "D"))
    _STORED.dtype("x", x, FLOATS)
    _check_scale(_STORED, x, scale)
    if mean is not None:
        _STORED.shape("mean", mean, x.shape[2:])
        _STORED.dtype("mean", mean, (torch.float32,))
    _STORED.that(dtype in _FORMATS, "dtype", " or ".join(_FORMATS), dtype)
    return _FORMATS[dtype]


def _check_restored(x: Tensor, scale: Tensor, dtype: str) -> torch.dtype:
    _RESTORED.shape("x", x, ("B", "S", "H", "D"))
    _RESTORED.dtype("x", x, tuple(LARGEST))
    _check_scale(_RESTORED, x, scale)
    _RESTORED.that(dtype in _OUTPUTS, "dtype", " or ".join(_OUTPUTS), dtype)
    return _OUTPUTS[dtype]


def _check_scale(checks: Checks, x: Tensor, scale: Tensor) -> None:
    checks.shape("scale", scale, x.shape[2:3])
    checks.dtype("scale", scale, (torch.float32,))


LIBRARY = torch.library.Library("vidc", "FRAGMENT")
LIBRARY.define("stored(Tensor x, Tensor scale, Tensor? mean, str dtype) -> Tensor")
LIBRARY.define("restored(Tensor x, Tensor scale, str dtype) -> Tensor")
for _name, _reference, _fake in (
    ("stored", stored_reference, _stored_fake),
    ("restored", restored_reference, _restored_fake),
):
    LIBRARY.impl(_name, _reference, "CompositeExplicitAutograd")
    torch.library.register_fake(f"vidc::{_name}", _fake, lib=LIBRARY)
stored = torch.ops.vidc.stored.default
restored = torch.ops.vidc.restored.default
