"""Tensors for a component's arguments."""

from collections.abc import Sequence

import torch

from vidc.plugins.signature import TensorSpec


def empty_tensors(
    specs: Sequence[TensorSpec], device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Tensors of these shapes and dtypes, filled with zeros."""
    return tuple(torch.zeros(s.shape, dtype=s.torch_dtype, device=device) for s in specs)
