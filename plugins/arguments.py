"""Checks of an operator's arguments; a failed one is ``VIDC-KERNEL-ARGUMENT``.

References and fake kernels run them, so an argument that no kernel takes is refused when a graph is
traced. The kernels run them again, with the same messages: ``plugins/cuda/arguments.cpp``.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
VECTOR = 8
"""Channels of a row per thread of a kernel: 16 bytes of a 16-bit dtype."""
WIDEST = 1024 * VECTOR
"""Largest number of channels of a row: one thread per vector, at most 1024 threads."""


class Checks:
    """Checks that name the operator and the argument when they fail.

    Args:
        operator: name in the namespace ``vidc``.
    """

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def refuse(self, argument: str, expected: object, found: object) -> NoReturn:
        """Raises UsageError: ``VIDC-KERNEL-ARGUMENT``."""
        raise UsageError(
            "VIDC-KERNEL-ARGUMENT",
            f"vidc::{self.operator}: {argument}: expected {expected}, found {found}",
            "pass arguments as the operator's reference in vidc.plugins.ops documents them",
        )

    def that(self, holds: bool, argument: str, expected: object, found: object) -> None:
        """Refuses an argument unless ``holds``."""
        if not holds:
            self.refuse(argument, expected, found)

    def shape(self, argument: str, tensor: Tensor, expected: Sequence[int | str]) -> None:
        """Refuses a tensor of another shape; a letter stands for any size from 1."""
        sizes = tuple(tensor.shape)
        fits = len(sizes) == len(expected) and all(
            size > 0 and (isinstance(wanted, str) or size == wanted)
            for size, wanted in zip(sizes, expected, strict=True)
        )
        self.that(fits, argument, f"shape [{', '.join(map(str, expected))}]", list(sizes))

    def dtype(self, argument: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
        """Refuses a tensor whose dtype is not allowed."""
        names = " or ".join(map(dtype_name, allowed))
        self.that(tensor.dtype in allowed, argument, names, dtype_name(tensor.dtype))

    def output(self, dtype: str, scale: Tensor | None) -> torch.dtype:
        """Returns the output's dtype; refuses FP8 without a scale and other dtypes with one.

        Args:
            dtype: name of the dtype. A ScalarType would not do: AOTInductor of torch 2.11 passes a
                different one (export numbers them from 1, operators from 0).
            scale: the argument ``output_scale``, float32 ``[1]``.
        """
        allowed = {dtype_name(each): each for each in (*FLOATS, torch.float8_e4m3fn)}
        self.that(dtype in allowed, "dtype", " or ".join(allowed), dtype)
        quantized = allowed[dtype] is torch.float8_e4m3fn
        self.that(
            quantized == (scale is not None),
            "output_scale",
            f"{'a tensor' if quantized else 'none'} for {dtype}",
            "none" if scale is None else "a tensor",
        )
        if scale is not None:
            self.shape("output_scale", scale, (1,))
            self.dtype("output_scale", scale, (torch.float32,))
        return allowed[dtype]

    def width(self, argument: str, width: int) -> None:
        """Refuses a row that a block of threads with 8 channels each cannot cover."""
        self.that(
            width % VECTOR == 0 and width <= WIDEST,
            argument,
            f"a width that is a multiple of {VECTOR}, at most {WIDEST}",
            width,
        )


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name that operators take: ``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")
