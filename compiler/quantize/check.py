"""Check of a quantized weights file against its sources, by independent arithmetic."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vidc.compiler.quantize.arithmetic import LARGEST, as_rows
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.linears import LinearSpec, by_owner
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError

_HALF_STEP = {"int8": (0.5, 0.0), "fp8": (2.0**-10, 2.0**-4)}
"""Largest rounding error by format: as a multiple of the scale, and relative to the value."""
_SLACK = 1e-4
"""Relative tolerance of scales."""


def require_faithful(
    found: Mapping[str, LazyTensor],
    weights: Mapping[str, LazyTensor],
    linears: Mapping[str, LinearSpec],
    calibration: Calibration | None,
) -> None:
    """Rejects quantized tensors that do not match the weights and the calibration.

    A dequantized weight must equal the source's weight within half a quantization step, and the
    quantized weight must use the format's whole range. An input scale must map the calibrated amax
    to the format's largest value. Smoothing factors must cancel between input and weight. A bias
    must make up for the mean that is subtracted from its input.

    Args:
        found: the stored tensors.
        weights: the weights in high precision.
        linears: the quantized linear layers by name.
        calibration: needed if a linear layer is ``calibrated``.

    Raises:
        BuildError: ``VIDC-QUANTIZE-WEIGHTS`` with the first layer.
    """
    for name, linear in linears.items():
        factor = None
        if linear.owner is not None and linear.format.smooth:
            factor = found[linear.pre_quant_scale].load()
        scale = found[linear.weight_scale].load()
        source = as_rows(weights[linear.weight].load())
        values = found[linear.weight].load().float()
        _check_weight(linear, values, scale[:, None], source, factor)
        if linear.owner is not None and linear.format.center:
            mean = found[linear.mean].load()
            bias, before = (each[linear.bias].load() for each in (found, weights))
            _check_bias(name, bias, before, source.double() * mean.double())
    ranged = [linear for linear in linears.values() if linear.calibrated]
    for owner, members in by_owner(ranged).items():
        assert calibration is not None
        _check_input(owner, members, found, calibration)


def _check_weight(
    linear: LinearSpec,
    values: Tensor,
    scale: Tensor,
    source: Tensor,
    factor: Tensor | None,
) -> None:
    """Compares values times scale, ``[out, 1]``, with the source's weight, ``[out, in]``."""
    name = linear.name
    expected = source.float() if factor is None else source.float() / factor
    steps, share = _HALF_STEP[linear.format.weights]
    allowed = steps * scale + (share + _SLACK) * expected.abs()
    wrong = ~((values * scale - expected).abs() <= allowed)
    if wrong.any():
        channel = int(wrong.any(1).nonzero()[0])
        raise _unfaithful(
            name,
            f"output channel {channel} of its weight, times its scale {float(scale[channel]):.3g}, "
            "differs from the loaded weight",
        )
    used = values.abs().amax(1)
    coarse = (used < LARGEST[linear.format.weights] * (1 - share - _SLACK) - steps) & (
        expected.abs().amax(1) > 0
    )
    if coarse.any():
        channel = int(coarse.nonzero()[0])
        raise _unfaithful(
            name, f"output channel {channel} of its weight uses only part of the range"
        )


def _check_bias(name: str, found: Tensor, source: Tensor, taken_off: Tensor) -> None:
    """Checks that a bias is the source's bias plus the row sums of ``taken_off``, ``[out, in]``."""
    difference = found.double() - source.double() - taken_off.sum(1)
    # The sum is rounded once, to the stored dtype; its terms may cancel.
    kind = torch.finfo(found.dtype)
    allowed = kind.eps * (found.double().abs() + kind.smallest_normal)
    wrong = ~(difference.abs() <= allowed + 1e-12 * taken_off.abs().sum(1)) | ~found.isfinite()
    if wrong.any():
        channel = int(wrong.nonzero()[0])
        raise _unfaithful(
            name, f"the bias of output channel {channel} does not make up for its input's mean"
        )


def _check_input(
    owner: str,
    members: Sequence[LinearSpec],
    found: Mapping[str, LazyTensor],
    calibration: Calibration,
) -> None:
    fmt = members[0].format
    names = [f"{member.name}.input" for member in members]
    if fmt.center:
        mean = found[members[0].mean].load()
        _check_mean(owner, mean, torch.stack([calibration.mean(name) for name in names]))
    if not members[0].static:
        return  # Its scales are per-token.
    factor = found[members[0].pre_quant_scale].load().double() if fmt.smooth else 1.0
    if fmt.center:
        reach = [_reach(calibration, name, mean.double()) for name in names]
    else:
        reach = [calibration.amax(name) for name in names]
    stored = found[members[0].scale]
    expected = max(float((each * factor).max()) for each in reach)
    if fmt.center and expected == 0:
        return  # The input is constant and has no range.
    reached = float(stored.load()) * LARGEST[fmt.activations]
    if not abs(reached - expected) <= _SLACK * expected:
        raise _unfaithful(
            owner, f"its input's scale covers {reached:.4g}, the calibration has {expected:.4g}"
        )


def _check_mean(owner: str, found: Tensor, means: Tensor) -> None:
    """Checks that an input's mean lies between those of its linear layers, ``[n, in]``.

    All are means of one tensor, over different passes.
    """
    kind = torch.finfo(found.dtype)
    slack = kind.eps * (means.double().abs().amax(0) + kind.smallest_normal)
    low, high = means.double().amin(0) - slack, means.double().amax(0) + slack
    wrong = ~((found.double() >= low) & (found.double() <= high))
    if wrong.any():
        channel = int(wrong.nonzero()[0])
        raise _unfaithful(
            owner,
            f"{float(found[channel]):.4g} is subtracted from channel {channel} of its input, whose "
            f"mean is {float(means[-1, channel]):.4g} in the calibration",
        )


def _reach(calibration: Calibration, name: str, mean: Tensor) -> Tensor:
    """Returns the per-channel amax of a tensor after ``mean`` is subtracted."""
    ends = (calibration.tensors[f"{name}.{end}"].double() for end in ("low", "high"))
    return torch.stack([(end - mean).abs() for end in ends]).amax(0)


def _unfaithful(name: str, why: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-WEIGHTS",
        f"transformer, {name}: {why}",
        "run vidc cache verify, then build again; if it stays, report it with this message",
    )
