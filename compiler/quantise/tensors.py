"""The tensors of a quantised weights file, by name, shape and dtype."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vidc.compiler.quantise.arithmetic import DTYPES
from vidc.compiler.quantise.lowering import QuantizedLinear
from vidc.exporters.checkpoint.write import Described


@dataclass(frozen=True)
class TensorType:
    """A tensor without values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def weight_name(layer: str) -> str:
    """A Linear's weight, ``[out, in]``."""
    return f"{layer}.weight"


def weight_scale_name(layer: str) -> str:
    """The scale of each of its output channels, ``[out]``."""
    return f"{layer}.weight_scale"


def input_scale_name(site: str) -> str:
    """The scale of a quantised input, a scalar."""
    return f"{site}.input_scale"


def input_factor_name(site: str) -> str:
    """What an input is multiplied with before, ``[in]``: one over SmoothQuant's factors."""
    return f"{site}.input_factor"


def quantized_types(
    weights: Mapping[str, Described], linears: Mapping[str, QuantizedLinear]
) -> dict[str, TensorType]:
    """The tensors of a weights file once these Linears are quantised.

    Scales have the dtype of the weights that they replace, as ONNX wants it.

    Args:
        weights: the tensors of the file in high precision.
        linears: by layer.
    """
    types = {n: TensorType(tuple(t.shape), t.dtype) for n, t in weights.items()}
    for layer, linear in linears.items():
        weight = types[weight_name(layer)]
        features_out, features_in = weight.shape
        types[weight_name(layer)] = TensorType(weight.shape, DTYPES[linear.format.weights])
        types[weight_scale_name(layer)] = TensorType((features_out,), weight.dtype)
        if linear.site is not None:
            types[input_scale_name(linear.site)] = TensorType((), weight.dtype)
            if linear.format.smooth:
                types[input_factor_name(linear.site)] = TensorType((features_in,), weight.dtype)
    return types
