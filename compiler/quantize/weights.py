"""Weights in 8 bits, and the scales of what is multiplied with them."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from vidc.compiler.quantize.arithmetic import quantize, scale_of, smoothing
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.form import GRAPH, Form
from vidc.compiler.quantize.lowering import QuantizedLinear, sites
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
    form: Form = GRAPH,
) -> dict[str, LazyTensor]:
    """The tensors of ``quantized_types``, each made when it is loaded.

    Args:
        weights: in high precision.
        linears: by layer.
        calibration: of these weights; needed where a Linear is ``calibrated``.
        form: of what reads them.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, as of ``quantized_types``.
        ValueError: a calibration is needed and not there.
    """
    made: dict[str, Callable[[], Tensor]] = {}
    types = quantized_types(weights, linears, form)
    ranged = [linear for linear in linears.values() if linear.calibrated]
    for site, members in sites(ranged).items():
        if calibration is None:
            raise ValueError(f"{site} takes ranges, and there is no calibration")
        mean: Callable[[], Tensor] | None = None
        if members[0].format.center:
            # As it is stored: what is taken off must be what scales and biases make up for.
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
            made |= _weight(weights, member, form, factors, scale)
    for linear in linears.values():
        if not linear.calibrated:
            made |= _weight(weights, linear, form)
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
    """The largest magnitudes of an input by channel, ``[in]``, in all passes of its Linears.

    One of them may run where another does not: the last layer's queries are not needed in a clean
    pass.

    Args:
        members: its Linears.
        calibration: where they are from.
        mean: what is taken off the input before it is quantized, ``[in]``, or None.
    """
    names = [f"{member.name}.input" for member in members]
    if mean is None:
        return torch.stack([calibration.amax(name) for name in names]).amax(0)
    mean = mean.float()
    return torch.stack([calibration.centred_amax(name, mean) for name in names]).amax(0)


def input_mean(
    members: Sequence[QuantizedLinear],
    calibration: Calibration,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """What is taken off an input, ``[in]``; the last of several Linears runs in all passes."""
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
    form: Form,
    factors: Callable[[], Tensor] | None = None,
    input_scale: Callable[[], Tensor] | None = None,
) -> dict[str, Callable[[], Tensor]]:
    source, kind = weights[weight_name(linear.name)], linear.format.weights

    def values() -> Tensor:
        values = source.load().float()
        return values if factors is None else values * factors()

    def scale() -> Tensor:
        # As it is stored: what is rounded to 8 bits must be divided by what it is multiplied with.
        dtype = torch.float32 if form.products else source.dtype
        return scale_of(values().abs().amax(1), kind).to(dtype)

    def stored_scale() -> Tensor:
        return scale() * input_scale() if form.products and input_scale is not None else scale()

    return {
        weight_name(linear.name): lambda: quantize(values(), scale()[:, None], kind),
        weight_scale_name(linear.name, form): stored_scale,
    }


def _stored(make: Callable[[], Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return make().to(dtype).reshape(shape).contiguous()
