"""Quantized weights of linear layers, with the scales, factors and means of their inputs."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from vidc.compiler.quantize.arithmetic import quantize, scale_of, smoothing
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.lowering import QuantizedLinear, sites
from vidc.compiler.quantize.support import ONNX, QuantizationSupport
from vidc.compiler.quantize.tensors import (
    bias_name,
    input_factor_name,
    input_mean_name,
    input_scale_name,
    quantized_types,
    weight_name,
    weight_scale_name,
)
from vidc.exporters.checkpoint.lazy import LazyTensor


def quantized_weights(
    weights: Mapping[str, LazyTensor],
    linears: Mapping[str, QuantizedLinear],
    calibration: Calibration | None,
    support: QuantizationSupport = ONNX,
) -> dict[str, LazyTensor]:
    """Returns the tensors of ``quantized_types``, each computed when it is loaded.

    Args:
        weights: the weights in high precision.
        linears: the quantized linear layers by name.
        calibration: needed if a linear layer is ``calibrated``.
        support: the backend's quantization support.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, as ``quantized_types``.
        ValueError: a calibration is needed and missing.
    """
    made: dict[str, Callable[[], Tensor]] = {}
    types = quantized_types(weights, linears, support)
    ranged = [linear for linear in linears.values() if linear.calibrated]
    for site, members in sites(ranged).items():
        if calibration is None:
            raise ValueError(f"{site} needs a calibration")
        mean: Callable[[], Tensor] | None = None
        if members[0].format.center:
            # In the stored dtype, so that scales and biases match what the engine subtracts.
            mean = partial(input_mean, members, calibration, types[input_mean_name(site)].dtype)
            made[input_mean_name(site)] = mean
            made |= {bias_name(m.name): partial(_bias, weights, m.name, mean) for m in members}
        inputs = partial(_inputs, members, calibration, mean)
        factors = cache(partial(_factors, weights, members, inputs))
        scale = partial(_input_scale, members, inputs, factors) if members[0].static else None
        if scale is not None:
            made[input_scale_name(site)] = scale
        if members[0].format.smooth:
            made[input_factor_name(site)] = partial(_reciprocal, factors)
        for member in members:
            made |= _weight(weights, member, support, factors, scale)
    for linear in linears.values():
        if not linear.calibrated:
            made |= _weight(weights, linear, support)
    return {
        name: LazyTensor(
            kind.shape, kind.dtype, partial(_stored, made[name], kind.dtype, kind.shape)
        )
        if name in made
        else weights[name]
        for name, kind in types.items()
    }


def input_amax(
    members: Sequence[QuantizedLinear], calibration: Calibration, mean: Tensor | None = None
) -> Tensor:
    """Returns the per-channel amax of an input, ``[in]``, over all passes of its linear layers.

    Their passes differ: a clean pass skips the last layer's queries.

    Args:
        members: the linear layers that read the input.
        calibration: the calibration.
        mean: mean that is subtracted before quantization, ``[in]``, or None.
    """
    names = [f"{member.name}.input" for member in members]
    if mean is None:
        return torch.stack([calibration.amax(name) for name in names]).amax(0)
    mean = mean.float()
    return torch.stack([calibration.centered_amax(name, mean) for name in names]).amax(0)


def input_mean(
    members: Sequence[QuantizedLinear],
    calibration: Calibration,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Returns an input's mean, ``[in]``, from its last linear layer, which runs in all passes."""
    return calibration.mean(f"{members[-1].name}.input").to(dtype)


def _inputs(
    members: Sequence[QuantizedLinear],
    calibration: Calibration,
    mean: Callable[[], Tensor] | None,
) -> Tensor:
    return input_amax(members, calibration, None if mean is None else mean())


def _bias(weights: Mapping[str, LazyTensor], name: str, mean: Callable[[], Tensor]) -> Tensor:
    weight, bias = (weights[each].load().double() for each in (weight_name(name), bias_name(name)))
    return bias + weight @ mean().double()


def _factors(
    weights: Mapping[str, LazyTensor],
    members: Sequence[QuantizedLinear],
    amax: Callable[[], Tensor],
) -> Tensor:
    inputs = amax()
    alpha = members[0].format.smooth
    if not alpha:
        return torch.ones_like(inputs)
    return smoothing(inputs, [weights[weight_name(m.name)].load() for m in members], alpha)


def _reciprocal(factors: Callable[[], Tensor]) -> Tensor:
    return factors().reciprocal()


def _input_scale(
    members: Sequence[QuantizedLinear], amax: Callable[[], Tensor], factors: Callable[[], Tensor]
) -> Tensor:
    return scale_of((amax() / factors()).amax(), members[0].format.activations)


def _weight(
    weights: Mapping[str, LazyTensor],
    linear: QuantizedLinear,
    support: QuantizationSupport,
    factors: Callable[[], Tensor] | None = None,
    input_scale: Callable[[], Tensor] | None = None,
) -> dict[str, Callable[[], Tensor]]:
    source, kind = weights[weight_name(linear.name)], linear.format.weights

    def values() -> Tensor:
        values = source.load().float()
        return values if factors is None else values * factors()

    def scale() -> Tensor:
        # In the stored dtype, so that quantization and dequantization use the same scale.
        dtype = torch.float32 if support.product_scales else source.dtype
        return scale_of(values().abs().amax(1), kind).to(dtype)

    def stored_scale() -> Tensor:
        return (
            scale() * input_scale()
            if support.product_scales and input_scale is not None
            else scale()
        )

    return {
        weight_name(linear.name): lambda: quantize(values(), scale()[:, None], kind),
        weight_scale_name(linear.name, support): stored_scale,
    }


def _stored(make: Callable[[], Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return make().to(dtype).reshape(shape).contiguous()
