"""Tensors that are known by shape and dtype and read when asked for."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

import torch
from torch import Tensor

from vidc.plugins.errors import BuildError


@dataclass(frozen=True)
class LazyTensor:
    """A tensor on the CPU that is not in memory yet.

    ``load`` returns a tensor of this shape and dtype. It may be mapped from the file, so do not
    write to it. It takes memory for as long as the caller keeps it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    load: Callable[[], Tensor]

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        """A tensor that exists already."""
        return cls(tuple(tensor.shape), tensor.dtype, lambda: tensor)


def is_finite(tensor: Tensor) -> bool:
    """Returns True if a floating-point tensor has neither NaN nor Inf."""
    if tensor.numel() == 0:
        return True
    # The extremes propagate NaN, and one pass finds them 20 times faster than `isfinite().all()`.
    return bool(torch.stack(torch.aminmax(tensor)).isfinite().all())


def cast(tensors: Mapping[str, LazyTensor], dtype: torch.dtype) -> dict[str, LazyTensor]:
    """The same tensors in another floating-point dtype, converted when they are loaded.

    Loading one raises BuildError ``VIDC-CHECKPOINT-OVERFLOW`` if a value is too large for it.
    """
    return {
        name: LazyTensor(tensor.shape, dtype, partial(_converted, name, tensor, dtype))
        for name, tensor in tensors.items()
    }


def _converted(name: str, tensor: LazyTensor, dtype: torch.dtype) -> Tensor:
    values = tensor.load().to(dtype)
    if not is_finite(values):
        raise BuildError(
            "VIDC-CHECKPOINT-OVERFLOW",
            f"{name} has values beyond the range of {dtype}",
            "build this component in bf16 or fp32",
        )
    return values
