"""A component: one graph with a fixed signature."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from vidc.plugins.signature import Signature, TensorSpec


@dataclass(frozen=True)
class Component:
    """A module ready for export, and the names of its tensors.

    ``module.forward`` takes ``signature.arguments`` in order, writes its states in place and
    returns a tuple of ``signature.outputs``. Its parameters are named ``<weights file>.<key>``:
    ``transformer.blocks.0.ffn.net.2.weight`` is key ``blocks.0.ffn.net.2.weight`` of
    ``weights/transformer.safetensors``. The module may live on the meta device.
    """

    name: str
    module: nn.Module
    signature: Signature


def empty_tensors(
    specs: Sequence[TensorSpec], device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Tensors of these shapes and dtypes, filled with zeros."""
    return tuple(torch.zeros(s.shape, dtype=s.torch_dtype, device=device) for s in specs)
