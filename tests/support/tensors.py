"""Tensors for a component's arguments."""

from collections.abc import Sequence

import torch

from vidc.plugins.signature import Signature, TensorSpec


def empty_tensors(
    specs: Sequence[TensorSpec], device: torch.device | str = "cpu"
) -> tuple[torch.Tensor, ...]:
    """Tensors of these shapes and dtypes, filled with zeros."""
    return tuple(torch.zeros(s.shape, dtype=s.torch_dtype, device=device) for s in specs)


def random_inputs(
    signature: Signature, position: int, valid_length: int, timestep: float
) -> dict[str, torch.Tensor]:
    """Inputs of ``denoise``, ``kv_update`` or ``recache_n`` at a position of a stream."""
    inputs = {t.name: torch.randn(t.shape) for t in signature.inputs}
    angles = torch.rand(signature["rope_cos"].shape) * 6
    return inputs | {
        "timestep": torch.full(signature["timestep"].shape, timestep),
        "rope_cos": angles.cos(),
        "rope_sin": angles.sin(),
        "position": torch.tensor([position]),
        "valid_length": torch.tensor([valid_length]),
    }


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Bytes of a tensor, uint8: NaN equals NaN in them, and 0 does not equal -0."""
    return tensor.contiguous().view(torch.uint8)
