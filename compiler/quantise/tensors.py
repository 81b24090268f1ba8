"""The tensors of a quantised weights file, by name, shape and dtype."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vidc.compiler.quantise.arithmetic import DTYPES
from vidc.compiler.quantise.form import GRAPH, Form
from vidc.compiler.quantise.lowering import QuantizedLinear
from vidc.exporters.checkpoint.write import Described
from vidc.exporters.linear_tensors import LinearTensors


@dataclass(frozen=True)
class TensorType:
    """A tensor without values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def weight_name(layer: str) -> str:
    """A Linear's weight, ``[out, in]``."""
    return f"{layer}.weight"


def weight_scale_name(layer: str, form: Form = GRAPH) -> str:
    """The scale of each of its output channels, ``[out]``: of its weight, or of its product."""
    return f"{layer}.product_scale" if form.products else f"{layer}.weight_scale"


def input_scale_name(site: str) -> str:
    """The scale of a quantised input, a scalar; ``[1]`` where scales are those of products."""
    return f"{site}.input_scale"


def input_factor_name(site: str) -> str:
    """What an input is multiplied with before, ``[in]``: one over SmoothQuant's factors."""
    return f"{site}.input_factor"


def quantized_types(
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    form: Form = GRAPH,
) -> dict[str, TensorType]:
    """The tensors of a weights file once these Linears are quantised.

    Args:
        weights: the tensors of the file in high precision.
        linears: by layer.
        form: of what reads them.
    """
    types = {n: TensorType(tuple(t.shape), t.dtype) for n, t in weights.items()}
    for layer, linear in linears.items():
        weight = types[weight_name(layer)]
        features_out, features_in = weight.shape
        types[weight_name(layer)] = TensorType(weight.shape, DTYPES[linear.format.weights])
        dtype = torch.float32 if form.products else weight.dtype
        types[weight_scale_name(layer, form)] = TensorType((features_out,), dtype)
        if linear.site is not None:
            types[input_scale_name(linear.site)] = TensorType((1,) if form.products else (), dtype)
            if linear.format.smooth:
                types[input_factor_name(linear.site)] = TensorType((features_in,), dtype)
    return types


def linear_tensors(group: str, linear: QuantizedLinear, form: Form) -> LinearTensors:
    """The names by which a component asks for the tensors of a Linear.

    Args:
        group: of the weights.
        linear: it.
        form: of the component.
    """
    site = linear.site
    return LinearTensors(
        f"{group}.{weight_name(linear.name)}",
        f"{group}.{weight_scale_name(linear.name, form)}",
        None if site is None else f"{group}.{input_scale_name(site)}",
        None if site is None or not linear.format.smooth else f"{group}.{input_factor_name(site)}",
    )
