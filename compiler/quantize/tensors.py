"""The tensors of a quantized weights file, by name, shape and dtype."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from vidc.compiler.quantize.arithmetic import DTYPES
from vidc.compiler.quantize.form import GRAPH, Form
from vidc.compiler.quantize.lowering import QuantizedLinear
from vidc.exporters.checkpoint.write import Described
from vidc.exporters.linear_tensors import LinearTensors
from vidc.plugins.errors import BuildError


@dataclass(frozen=True)
class TensorType:
    """A tensor without values."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def weight_name(layer: str) -> str:
    """A Linear's weight, ``[out, in]``."""
    return f"{layer}.weight"


def bias_name(layer: str) -> str:
    """Its bias, ``[out]``, in high precision."""
    return f"{layer}.bias"


def weight_scale_name(layer: str, form: Form = GRAPH) -> str:
    """The scale of each of its output channels, ``[out]``: of its weight, or of its product."""
    return f"{layer}.product_scale" if form.products else f"{layer}.weight_scale"


def input_scale_name(site: str) -> str:
    """The scale of a quantized input, a scalar; ``[1]`` where scales are those of products."""
    return f"{site}.input_scale"


def input_factor_name(site: str) -> str:
    """What an input is multiplied with before, ``[in]``: one over SmoothQuant's factors."""
    return f"{site}.input_factor"


def input_mean_name(site: str) -> str:
    """What is taken off an input before that, ``[in]``: the calibration's mean."""
    return f"{site}.input_mean"


def quantized_types(
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    form: Form = GRAPH,
) -> dict[str, TensorType]:
    """The tensors of a weights file once these Linears are quantized.

    Args:
        weights: the tensors of the file in high precision.
        linears: by layer.
        form: of what reads them.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a mean is to be taken off the input of a Linear without
            a bias, which would take its product.
    """
    types = {n: TensorType(tuple(t.shape), t.dtype) for n, t in weights.items()}
    for layer, linear in linears.items():
        weight = types[weight_name(layer)]
        features_out, features_in = weight.shape
        types[weight_name(layer)] = TensorType(weight.shape, DTYPES[linear.format.weights])
        dtype = torch.float32 if form.products else weight.dtype
        types[weight_scale_name(layer, form)] = TensorType((features_out,), dtype)
        if linear.site is not None:
            if linear.static:
                shape = (1,) if form.products else ()
                types[input_scale_name(linear.site)] = TensorType(shape, dtype)
            if linear.format.smooth:
                types[input_factor_name(linear.site)] = TensorType((features_in,), dtype)
            if linear.format.center:
                if bias_name(layer) not in weights:
                    raise _without_bias(layer)
                types[input_mean_name(linear.site)] = TensorType((features_in,), dtype)
    return types


def linear_tensors(group: str, linear: QuantizedLinear, form: Form) -> LinearTensors:
    """The names by which a component asks for the tensors of a Linear.

    Args:
        group: of the weights.
        linear: it.
        form: of the component.
    """
    site = linear.site
    weight, scale = weight_name(linear.name), weight_scale_name(linear.name, form)
    if site is None:
        return LinearTensors(f"{group}.{weight}", f"{group}.{scale}")
    return LinearTensors(
        f"{group}.{weight}",
        f"{group}.{scale}",
        f"{group}.{input_scale_name(site)}" if linear.static else None,
        f"{group}.{input_factor_name(site)}" if linear.format.smooth else None,
        f"{group}.{input_mean_name(site)}" if linear.format.center else None,
        dynamic=not linear.static,
    )


def _without_bias(layer: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-GRAPH",
        f"{layer} has no bias to take the product of its weight and its input's mean",
        "leave center out of the recipe's rule for this layer",
    )
