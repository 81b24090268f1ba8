"""Tensors of a quantized weights file, by name, shape and dtype."""

from collections.abc import Collection, Container, Mapping
from dataclasses import dataclass

import torch

from vidc.compiler.quantize.arithmetic import DTYPES
from vidc.compiler.quantize.lowering import QuantizedLinear
from vidc.compiler.quantize.support import ONNX, QuantizationSupport
from vidc.exporters.checkpoint.write import Described
from vidc.exporters.linear_tensors import LinearTensors
from vidc.plugins.errors import BuildError


@dataclass(frozen=True)
class TensorType:
    """Shape and dtype of a tensor."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def weight_name(layer: str) -> str:
    """Name of a linear layer's weight, ``[out, in]``."""
    return f"{layer}.weight"


def bias_name(layer: str) -> str:
    """Name of a linear layer's bias, ``[out]``, in high precision."""
    return f"{layer}.bias"


def weight_scale_name(layer: str, support: QuantizationSupport = ONNX) -> str:
    """Name of the per-channel scale of a linear layer's weight, or of its product, ``[out]``."""
    return f"{layer}.product_scale" if support.product_scales else f"{layer}.weight_scale"


def input_scale_name(site: str) -> str:
    """Name of a quantized input's scale, a scalar; ``[1]`` with ``product_scales``."""
    return f"{site}.input_scale"


def input_factor_name(site: str) -> str:
    """Name of an input's multiplier, ``[in]``: the reciprocal of SmoothQuant's factors."""
    return f"{site}.input_factor"


def input_mean_name(site: str) -> str:
    """Name of the calibrated mean that is subtracted from an input, ``[in]``."""
    return f"{site}.input_mean"


def quantized_types(
    weights: Mapping[str, Described],
    linears: Mapping[str, QuantizedLinear],
    support: QuantizationSupport = ONNX,
) -> dict[str, TensorType]:
    """Returns the tensors of a weights file with quantized linear layers.

    Args:
        weights: the tensors of the file in high precision.
        linears: the quantized linear layers by name.
        support: the backend's quantization support.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a centered linear layer has no bias.
    """
    types = {n: TensorType(tuple(t.shape), t.dtype) for n, t in weights.items()}
    for layer, linear in linears.items():
        weight = types[weight_name(layer)]
        features_out, features_in = weight.shape
        types[weight_name(layer)] = TensorType(weight.shape, DTYPES[linear.format.weights])
        dtype = torch.float32 if support.product_scales else weight.dtype
        types[weight_scale_name(layer, support)] = TensorType((features_out,), dtype)
        if linear.site is not None:
            if linear.static:
                shape = (1,) if support.product_scales else ()
                types[input_scale_name(linear.site)] = TensorType(shape, dtype)
            if linear.format.smooth:
                types[input_factor_name(linear.site)] = TensorType((features_in,), dtype)
            if linear.format.center:
                if bias_name(layer) not in weights:
                    raise _without_bias(layer)
                types[input_mean_name(linear.site)] = TensorType((features_in,), dtype)
    return types


def linear_tensors(
    group: str, linear: QuantizedLinear, support: QuantizationSupport
) -> LinearTensors:
    """Returns the names of a linear layer's tensors, prefixed with their weights group."""
    site = linear.site
    weight, scale = weight_name(linear.name), weight_scale_name(linear.name, support)
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


def asked_linears(
    weights: Container[str],
    group: str,
    linears: Mapping[str, QuantizedLinear],
    support: QuantizationSupport,
) -> list[LinearTensors]:
    """Returns the tensors of the recipe's linear layers that a component has.

    Args:
        weights: names of the component's weights.
        group: their group.
        linears: all quantized linear layers of the recipe, by name.
        support: the backend's quantization support.
    """
    return [
        linear_tensors(group, linear, support)
        for name, linear in linears.items()
        if f"{group}.{weight_name(name)}" in weights
    ]


def require_asked(
    component: str, asked: Collection[LinearTensors], found: Collection[LinearTensors]
) -> None:
    """Rejects a component whose quantized linear layers differ from the recipe's.

    Args:
        component: its name.
        asked: result of ``asked_linears``.
        found: tensors of the linear layers in the written component.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT`` with the component and the first layer.
    """
    wanted = {linear.weight: linear for linear in asked}
    there = {linear.weight: linear for linear in found}
    differ = [n for n in [*wanted, *there] if wanted.get(n) != there.get(n)]
    if differ or len(found) != len(there):
        first = differ[0] if differ else "a Linear that is there twice"
        raise BuildError(
            "VIDC-QUANTIZE-COUNT",
            f"{component}: the recipe asks for {_pairs(asked)}, the graph has {_pairs(found)}; "
            f"the first difference is {first}",
            "report it with this message; a recipe that leaves the layer out builds",
        )


def _pairs(linears: Collection[LinearTensors]) -> str:
    inputs = sum(linear.computes for linear in linears)
    return f"{len(linears)} weights and {inputs} inputs of Linears in 8 bits"


def _without_bias(layer: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-GRAPH",
        f"{layer} has no bias, which centering needs",
        "leave center out of the recipe's rule for this layer",
    )
