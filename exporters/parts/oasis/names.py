"""Names of an Oasis transformer's weights in its checkpoints, such as ``oasis500m.safetensors``."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vidc.exporters.checkpoint.layout import Layout
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.parts.oasis.config import MAX_FREQ, OasisConfig
from vidc.plugins.errors import BuildError

LAYOUTS = (
    Layout(
        "Oasis transformer",
        (
            *("s_attn", "t_attn", "s_mlp", "t_mlp", "s_adaLN_modulation", "t_adaLN_modulation"),
            *("spatial_rotary_emb", "temporal_rotary_emb"),
        ),
    ),
)
_FREQUENCIES = "rotary_emb.freqs"
_CLOSE = 1e-2
"""Relative tolerance of stored frequencies, which may have been rounded to 16 bits."""


def without_frequencies(
    tensors: Mapping[str, LazyTensor], config: OasisConfig
) -> dict[str, LazyTensor]:
    """Returns the tensors without the frequencies of rotary embeddings.

    They are constants that the network computes. All blocks share them, so a checkpoint stores them
    once or several times, under the names of any blocks.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-MISMATCH``, stored frequencies differ from the network's.
    """
    for name, tensor in tensors.items():
        if not name.endswith(_FREQUENCIES):
            continue
        temporal = "temporal" in name or ".t_attn." in name
        expected = _temporal(config) if temporal else _spatial(config)
        found = tensor.load().float()
        if found.shape != expected.shape or not torch.allclose(found, expected, rtol=_CLOSE):
            raise BuildError(
                "VIDC-CHECKPOINT-MISMATCH",
                f"{name} has other frequencies than the model: {_shown(found)}, expected "
                f"{_shown(expected)}",
                "use a checkpoint of Oasis 500M, or of a model with the same rotary embedding",
            )
    return {n: tensor for n, tensor in tensors.items() if not n.endswith(_FREQUENCIES)}


def _spatial(config: OasisConfig) -> Tensor:
    return torch.linspace(1.0, MAX_FREQ / 2, config.head_dim // 4) * math.pi


def _temporal(config: OasisConfig) -> Tensor:
    pairs = config.head_dim // 2
    return torch.tensor(10000.0) ** (-torch.arange(pairs) / pairs)


def _shown(frequencies: Tensor) -> str:
    first = ", ".join(f"{each:.4g}" for each in frequencies.flatten()[:3].tolist())
    return f"{[*frequencies.shape]} of {first}, …"


def disagreements(found: Mapping[str, Sequence[int]], config: OasisConfig) -> list[str]:
    """Lists settings that a checkpoint contradicts, such as ``model.actions = 6, not 25``."""
    blocks = {int(name.split(".")[1]) for name in found if name.startswith("blocks.")}
    sizes = {
        "layers": max(blocks, default=-1) + 1,
        "dim": _size(found, "x_embedder.proj.weight", 0),
        "channels": _size(found, "x_embedder.proj.weight", 1),
        "patch": _size(found, "x_embedder.proj.weight", 2),
        "actions": _size(found, "external_cond.weight", 1),
        "freq_dim": _size(found, "t_embedder.mlp.0.weight", 1),
    }
    return [
        f"model.{name} = {size}, not {getattr(config, name)}"
        for name, size in sizes.items()
        if size and size != getattr(config, name)
    ]


def _size(found: Mapping[str, Sequence[int]], name: str, axis: int) -> int:
    """Returns the size of a weight's axis, 0 if the weight or the axis is missing."""
    shape = found.get(name, ())
    return shape[axis] if len(shape) > axis else 0
