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
        self._dtype(argument, tensor.dtype, allowed)

    def output(self, dtype: torch.dtype, scale: Tensor | None) -> None:
        """Refuses a dtype of the output, and a scale unless it is FP8, which has to have one.

        Args:
            dtype: of the output.
            scale: the argument ``output_scale``, float32 ``[1]``.
        """
        self._dtype("dtype", dtype, (*FLOATS, torch.float8_e4m3fn))
        quantised = dtype is torch.float8_e4m3fn
        self.that(
            quantised == (scale is not None),
            "output_scale",
            f"{'a tensor' if quantised else 'none'} for {_name(dtype)}",
            "none" if scale is None else "a tensor",
        )
        if scale is not None:
            self.shape("output_scale", scale, (1,))
            self.dtype("output_scale", scale, (torch.float32,))

    def width(self, argument: str, width: int) -> None:
        """Refuses a row that threads of 8 channels each do not cover."""
        self.that(
            width % VECTOR == 0 and width <= WIDEST,
            argument,
            f"a width that is a multiple of {VECTOR}, at most {WIDEST}",
            width,
        )

    def frames(self, argument: str, tensor: Tensor, shape: Sequence[int]) -> None:
        """Refuses another shift, scale or gate than float32 ``[B, F, width]``.

        Args:
            argument: its name.
            tensor: of one row for each latent frame.
            shape: ``[B, T, width]`` of what it is applied to; ``F`` has to divide ``T``.
        """
        batch, tokens, width = shape
        self.shape(argument, tensor, (batch, "F", width))
        self.dtype(argument, tensor, (torch.float32,))
        frames = tensor.shape[1]
        self.that(
            tokens % frames == 0, argument, f"a number of frames that divides {tokens} tokens",
            frames,
        )  # fmt: skip

    def _dtype(self, argument: str, found: torch.dtype, allowed: Sequence[torch.dtype]) -> None:
        self.that(found in allowed, argument, " or ".join(map(_name, allowed)), _name(found))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
