"""Checks of an operator's arguments, by code ``VIDC-KERNEL-ARGUMENT``.

References and fake kernels make them, so that what no kernel takes is refused where a graph is
traced. The kernels make them again, in the same words: ``plugins/cuda/arguments.cpp``.
"""

from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
VECTOR = 8
"""Channels of a row that a thread of a kernel has: 16 bytes of a 16-bit dtype."""
WIDEST = 1024 * VECTOR
"""Channels of a row: kernels of rows have one thread for each vector."""


class Checks:
    """What the arguments of an operator must be.

    Args:
        operator: its name in the namespace ``vidc``.
    """

    def __init__(self, operator: str) -> None:
        self.operator = operator

    def refuse(self, argument: str, expected: object, found: object) -> NoReturn:
        """Raises UsageError: ``VIDC-KERNEL-ARGUMENT``."""
        raise UsageError(
            "VIDC-KERNEL-ARGUMENT",
            f"vidc::{self.operator}: {argument}: expected {expected}, found {found}",
            "give the operator what its reference in vidc.plugins documents",
        )

    def that(self, holds: bool, argument: str, expected: object, found: object) -> None:
        """Refuses an argument unless a condition holds."""
        if not holds:
            self.refuse(argument, expected, found)

    def shape(self, argument: str, tensor: Tensor, expected: Sequence[int | str]) -> None:
        """Refuses another shape; a letter stands for any size from 1."""
        sizes = tuple(tensor.shape)
        fits = len(sizes) == len(expected) and all(
            size > 0 and (isinstance(wanted, str) or size == wanted)
            for size, wanted in zip(sizes, expected, strict=True)
        )
        self.that(fits, argument, f"shape [{', '.join(map(str, expected))}]", list(sizes))

    def dtype(self, argument: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
        """Refuses another dtype."""
        names = " or ".join(map(dtype_name, allowed))
        self.that(tensor.dtype in allowed, argument, names, dtype_name(tensor.dtype))

    def output(self, dtype: str, scale: Tensor | None) -> torch.dtype:
        """The dtype of the output, which has a scale if it is FP8, and none otherwise.

        Args:
            dtype: its name. Torch 2.11's AOTInductor gives an argument of type ScalarType as
                another dtype: export numbers them from 1, operators from 0.
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
        """Refuses a row that threads of 8 channels each do not cover."""
        self.that(
            width % VECTOR == 0 and width <= WIDEST,
            argument,
            f"a width that is a multiple of {VECTOR}, at most {WIDEST}",
            width,
        )


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype as operators take it: ``bfloat16`` for ``torch.bfloat16``."""
    return str(dtype).removeprefix("torch.")
