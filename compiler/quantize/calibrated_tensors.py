"""Which tensors of a transformer are calibrated, by name, and the shape of what is kept of each."""

from functools import cache

from torch import nn

from vidc.exporters.config import ModelConfig, TransformerConfig
from vidc.exporters.models import meta_network

PARTS = ("q", "k", "v")
"""What enters self-attention, as ``blocks.0.attn1.q``."""
RING_PARTS = ("k", "v")
"""What of it the ring keeps, which is why its mean and its ends are kept too."""
SPREAD = ("mean", "low", "high")
"""What is kept of each channel of what a recipe may center."""


@cache
def linear_sizes(config: ModelConfig) -> dict[str, tuple[int, int]]:
    """Every Linear of the transformer by name: how many features go in and come out."""
    network = meta_network(config, "transformer", "fp32")
    return {
        name: (module.in_features, module.out_features)
        for name, module in network.named_modules()
        if isinstance(module, nn.Linear)
    }


def attention_names(config: TransformerConfig) -> tuple[str, ...]:
    """Every self-attention of the transformer by name."""
    return tuple(f"blocks.{layer}.attn1" for layer in range(config.layers))


def tensor_shapes(config: ModelConfig, groups: int) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a calibration.

    ``<linear>.input`` is ``[G, in]`` and ``<attention>.q`` (``k``, ``v``) ``[G, H, D]``: the
    largest magnitude of each channel in each of ``G`` groups, zero in one that does not run it.
    ``<linear>.weight`` is ``[out]``. ``<linear>.input.mean``, ``.low`` and ``.high`` are ``[in]``:
    mean and both ends over all passes. ``<attention>.k.mean``, ``.low`` and ``.high`` (and ``v``'s)
    are ``[H, D]``: the mean over the keys that stay, those of clean passes, and both ends over all.
    """
    heads = (config.transformer.heads, config.transformer.head_dim)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (features_in, features_out) in linear_sizes(config).items():
        shapes[f"{name}.input"] = (groups, features_in)
        shapes |= {f"{name}.input.{of}": (features_in,) for of in SPREAD}
        shapes[f"{name}.weight"] = (features_out,)
    for name in attention_names(config.transformer):
        shapes |= {f"{name}.{part}": (groups, *heads) for part in PARTS}
        shapes |= {f"{name}.{part}.{of}": heads for part in RING_PARTS for of in SPREAD}
    return shapes
