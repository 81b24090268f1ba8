"""State of quantized modules, from weights in high precision and a calibration."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

import torch
from torch import Tensor

from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.arithmetic import DTYPES, as_rows, scale_of, smoothing
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.attention import reach, require_heads, stored_parts
from vidc.compiler.quantize.linears import LinearSpec, by_owner, linears_of
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import Described
from vidc.plugins.quantize import quantize

Makers = dict[str, Callable[[], Tensor]]


def quantized_state(
    types: Mapping[str, Described],
    weights: Mapping[str, LazyTensor],
    formats: Quantization,
    calibration: Calibration | None,
) -> dict[str, LazyTensor]:
    """Returns the tensors of quantized modules, each computed when it is loaded.

    Args:
        types: the state of the quantized network, or of some of its modules.
        weights: the weights in high precision.
        formats: formats of the layers.
        calibration: needed if a layer has static scales, a mean or SmoothQuant's factors.

    Raises:
        GateError: ``VIDC-CALIBRATION-ZERO``, as ``require_heads``.
        ValueError: a calibration is needed and missing.
    """
    linears = linears_of(formats)
    made: Makers = {}
    ranged = [spec for spec in linears.values() if spec.calibrated]
    for members in by_owner(ranged).values():
        made |= _shared_input(members, weights, _needed(calibration, members[0].name))
    for spec in linears.values():
        if not spec.calibrated:
            made |= _weight(weights, spec)
    for name, fmt in formats.attention.items():
        for part, (tensor, kind) in stored_parts(fmt).items():
            ranges = _needed(calibration, name)
            require_heads({name: fmt}, ranges)
            made[f"{name}.ring.{part}.scale"] = partial(
                _scale, partial(reach, ranges, name, tensor, fmt), kind
            )
        if fmt.center:
            made[f"{name}.ring.keys.mean"] = partial(_needed(calibration, name).mean, f"{name}.k")
    return {
        name: LazyTensor(
            tuple(kind.shape), kind.dtype,
            partial(_stored, made[name], kind.dtype, tuple(kind.shape)),
        )
        if name in made
        else weights[name]
        for name, kind in types.items()
    }  # fmt: skip


def input_amax(
    members: Sequence[LinearSpec], calibration: Calibration, mean: Tensor | None = None
) -> Tensor:
    """Returns the per-channel amax of an input, ``[in]``, over all passes of its linear layers.

    The layers may run in different passes: a clean pass skips the last layer's queries.

    Args:
        members: the linear layers that read the input.
        calibration: the calibration.
        mean: mean that is subtracted before quantization, ``[in]``, or None.
    """
    names = [f"{member.name}.input" for member in members]
    if mean is None:
        return torch.stack([calibration.amax(name) for name in names]).amax(0)
    return torch.stack([calibration.centered_amax(name, mean) for name in names]).amax(0)


def input_mean(members: Sequence[LinearSpec], calibration: Calibration) -> Tensor:
    """Returns an input's mean, ``[in]``, from its last linear layer, which runs in all passes."""
    return calibration.mean(f"{members[-1].name}.input")


def _needed(calibration: Calibration | None, layer: str) -> Calibration:
    if calibration is None:
        raise ValueError(f"{layer} needs a calibration")
    return calibration


def _shared_input(
    members: Sequence[LinearSpec], weights: Mapping[str, LazyTensor], calibration: Calibration
) -> Makers:
    """Returns the tensors of an input's quantizer and of the linear layers that read it."""
    first, made = members[0], Makers()
    mean: Tensor | None = None
    if first.format.center:
        mean = input_mean(members, calibration)
        made[first.mean] = partial(torch.clone, mean)
        made |= {member.bias: partial(_bias, weights, member, mean) for member in members}
    amax = input_amax(members, calibration, mean)
    factors = cache(partial(_factors, weights, members, amax))
    if first.static:
        made[first.scale] = lambda: scale_of((amax / factors()).amax(), first.format.activations)
    if first.format.smooth:
        made[first.pre_quant_scale] = lambda: factors().reciprocal()
    for member in members:
        made |= _weight(weights, member, factors)
    return made


def _bias(weights: Mapping[str, LazyTensor], spec: LinearSpec, mean: Tensor) -> Tensor:
    weight, bias = (weights[each].load().double() for each in (spec.weight, spec.bias))
    return bias + weight @ mean.double()


def _factors(
    weights: Mapping[str, LazyTensor], members: Sequence[LinearSpec], amax: Tensor
) -> Tensor:
    alpha = members[0].format.smooth
    if not alpha:
        return torch.ones_like(amax)
    return smoothing(amax, [weights[member.weight].load() for member in members], alpha)


def _weight(
    weights: Mapping[str, LazyTensor],
    spec: LinearSpec,
    factors: Callable[[], Tensor] | None = None,
) -> Makers:
    source, kind = weights[spec.weight], spec.format.weights

    def values() -> Tensor:
        values = as_rows(source.load().float())
        return values if factors is None or not spec.format.smooth else values * factors()

    def scale() -> Tensor:
        return _scale(lambda: values().abs().amax(1), kind)

    return {
        spec.weight: lambda: quantize(values(), scale()[:, None], DTYPES[kind]),
        spec.weight_scale: scale,
    }


def _scale(amax: Callable[[], Tensor], fmt: str) -> Tensor:
    return scale_of(amax(), fmt)


def _stored(make: Callable[[], Tensor], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    return make().to(dtype).reshape(shape).contiguous()
