"""Holds a quantised weights file to what it was made from, by other arithmetic than made it."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from vidc.compiler.calibrate.artefact import Calibration
from vidc.compiler.quantise.arithmetic import LARGEST
from vidc.compiler.quantise.form import GRAPH, Form
from vidc.compiler.quantise.lowering import QuantizedLinear, sites
from vidc.compiler.quantise.tensors import (
    input_factor_name,
    input_scale_name,
    weight_name,
    weight_scale_name,
)
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError

_HALF_STEP = {"int8": (0.5, 0.0), "fp8": (2.0**-10, 2.0**-4)}
"""How far rounding moves a value at most: in scales, and as a share of the value itself."""
_SLACK = {torch.float32: 1e-4, torch.float16: 4e-3, torch.bfloat16: 3e-2}
"""How far scales may differ that are stored in a dtype."""


def require_faithful(
    found: Mapping[str, LazyTensor],
    weights: Mapping[str, LazyTensor],
    linears: Mapping[str, QuantizedLinear],
    calibration: Calibration | None,
    form: Form = GRAPH,
) -> None:
    """Refuses weights that are not the source's, and ranges that are not the calibration's.

    Every weight times its scale must be the source's weight within half a step, every input at the
    end of its range must be the format's largest value, and what an input is divided by, its weight
    must be multiplied with.

    Args:
        found: as they are stored.
        weights: in high precision.
        linears: by layer.
        calibration: where a Linear has a site.
        form: of what reads them.

    Raises:
        BuildError: ``VIDC-QUANTISE-WEIGHTS`` with the first layer.
    """
    for name, linear in linears.items():
        factor = None
        if linear.site is not None and linear.format.smooth:
            factor = found[input_factor_name(linear.site)].load().float()
        stored = found[weight_scale_name(name, form)]
        scale = stored.load().float()
        if form.products and linear.site is not None:
            scale = scale / found[input_scale_name(linear.site)].load()
        source = weights[weight_name(name)].load()
        values = found[weight_name(name)].load().float()
        _check_weight(linear, values, scale[:, None], _SLACK[stored.dtype], source, factor)
    for site, members in sites(linears.values()).items():
        assert calibration is not None
        _check_input(site, members, found, calibration)


def _check_weight(
    linear: QuantizedLinear,
    values: Tensor,
    scale: Tensor,
    slack: float,
    source: Tensor,
    factor: Tensor | None,
) -> None:
    """Holds a weight's values times its scale, ``[out, 1]``, to the source's, ``[out, in]``."""
    name = linear.name
    expected = source.float() if factor is None else source.float() / factor
    steps, share = _HALF_STEP[linear.format.weights]
    allowed = steps * scale + (share + slack) * expected.abs()
    wrong = ~((values * scale - expected).abs() <= allowed)
    if wrong.any():
        channel = int(wrong.any(1).nonzero()[0])
        raise _unfaithful(
            name,
            f"output channel {channel} of its weight, times its scale {float(scale[channel]):.3g}, "
            "is not the weight that was loaded",
        )
    used = values.abs().amax(1)
    coarse = (used < LARGEST[linear.format.weights] * (1 - share - slack) - steps) & (
        expected.abs().amax(1) > 0
    )
    if coarse.any():
        channel = int(coarse.nonzero()[0])
        raise _unfaithful(
            name, f"output channel {channel} of its weight uses a part of the range alone"
        )


def _check_input(
    site: str,
    members: Sequence[QuantizedLinear],
    found: Mapping[str, LazyTensor],
    calibration: Calibration,
) -> None:
    stored, form = found[input_scale_name(site)], members[0].format
    factor = found[input_factor_name(site)].load().double() if form.smooth else 1.0
    expected = max(
        float((calibration.amax(f"{member.name}.input") * factor).max()) for member in members
    )
    reached = float(stored.load()) * LARGEST[form.activations]
    if abs(reached - expected) > _SLACK[stored.dtype] * expected:
        raise _unfaithful(
            site, f"its input's scale reaches to {reached:.4g}, the calibration to {expected:.4g}"
        )


def _unfaithful(name: str, why: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTISE-WEIGHTS",
        f"transformer, {name}: {why}",
        "run vidc cache verify, then build again; if it stays, report it with this message",
    )
