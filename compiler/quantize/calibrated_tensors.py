"""Names and shapes of a calibration's tensors."""

from functools import cache
from typing import TypeGuard

from torch import nn

from vidc.exporters.families.family import Family

PARTS = ("q", "k", "v")
"""Inputs of self-attention, as in ``blocks.0.attn1.q``."""
RING_PARTS = ("k", "v")
"""Inputs that the ring stores; their mean, minimum and maximum are calibrated too."""
SPREAD = ("mean", "low", "high")
"""Per-channel statistics of tensors that a recipe may center."""


@cache
def _network(model: Family) -> nn.Module:
    """Returns the quantized part's network, on the meta device."""
    return model.quantized_part.network("fp32")


@cache
def linear_sizes(model: Family) -> dict[str, tuple[int, int]]:
    """Returns input and output features of the quantized part's linear layers by name."""
    return {
        name: (module.in_features, module.out_features)
        for name, module in _network(model).named_modules()
        if isinstance(module, nn.Linear)
    }


@cache
def convolution_sizes(model: Family) -> dict[str, tuple[int, int]]:
    """Returns input and output channels of the quantized part's convolutions by name.

    Convolutions that ``quantized_conv2d`` cannot compute are left out: those with groups, with a
    dilation, or with another padding than a fixed number of zeros.
    """
    return {
        name: (module.in_channels, module.out_channels)
        for name, module in _network(model).named_modules()
        if is_quantizable(module)
    }


def is_quantizable(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Returns True for a convolution that ``quantized_conv2d`` computes."""
    return (
        isinstance(module, nn.Conv2d)
        and module.groups == 1
        and module.dilation == (1, 1)
        and module.padding_mode == "zeros"
        and not isinstance(module.padding, str)
    )


@cache
def shared_inputs(model: Family) -> dict[str, tuple[str, ...]]:
    """Returns, by layer name, all linear layers that read the same tensor as that layer, in order.

    A module lists such children in its attribute ``shared_inputs``. Other layers are left out.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, module in _network(model).named_modules():
        together = tuple(f"{name}.{child}" for child in getattr(module, "shared_inputs", ()))
        found |= dict.fromkeys(together, together)
    return found


def tensor_shapes(model: Family, groups: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a calibration's tensors by name.

    ``<linear>.input``, ``[G, in]``, and ``<attention>.q`` (``k``, ``v``), ``[G, H, D]``: amax of
    each channel in each of ``G`` groups, zero for groups that do not run the layer.
    ``<linear>.weight``, ``[out]``: amax. A convolution has ``.input`` and ``.weight`` alone.
    ``<linear>.input.mean``, ``.low`` and ``.high``, ``[in]``: mean, minimum and maximum over all
    passes. ``<attention>.k.mean``, ``.low`` and ``.high`` (and ``v``'s), ``[H, D]``: mean over
    clean passes, whose keys stay in the ring; minimum and maximum over all passes.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, (features_in, features_out) in linear_sizes(model).items():
        shapes[f"{name}.input"] = (groups, features_in)
        shapes |= {f"{name}.input.{of}": (features_in,) for of in SPREAD}
        shapes[f"{name}.weight"] = (features_out,)
    for name, (channels_in, channels_out) in convolution_sizes(model).items():
        shapes |= {f"{name}.input": (groups, channels_in), f"{name}.weight": (channels_out,)}
    for name, attention in model.quantized_part.attentions.items():
        heads = (attention.heads, attention.head_dim)
        shapes |= {f"{name}.{part}": (groups, *heads) for part in PARTS}
        shapes |= {f"{name}.{part}.{of}": heads for part in RING_PARTS for of in SPREAD}
    return shapes
