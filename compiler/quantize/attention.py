"""Quantized rings: scales from a calibration, and their check."""

from collections.abc import Mapping

import torch
from torch import Tensor

from vidc.compiler.config.recipe import HIGH, STATIC, AttentionFormat
from vidc.compiler.quantize.arithmetic import LARGEST
from vidc.compiler.quantize.artifact import Calibration
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError, GateError

_SLACK = 1e-4


def stored_parts(fmt: AttentionFormat) -> dict[str, tuple[str, str]]:
    """Returns the parts of a ring that have static scales, such as ``{"keys": ("k", "fp8")}``.

    Maps the name of the ring's submodule to the tensor's name in the calibration and its format.
    """
    parts = {"keys": ("k", fmt.keys), "values": ("v", fmt.values)}
    return {n: each for n, each in parts.items() if fmt.scale == STATIC and each[1] != HIGH}


def reach(calibration: Calibration, name: str, part: str, fmt: AttentionFormat) -> Tensor:
    """Returns the per-head amax, ``[H]``, of a ring's keys or values, after centering if any.

    Args:
        calibration: the calibration.
        name: name of the self-attention.
        part: ``k`` or ``v``.
        fmt: its format.
    """
    centered = part == "k" and fmt.center
    tensor = f"{name}.{part}"
    return (calibration.centered_amax(tensor) if centered else calibration.amax(tensor)).amax(1)


def require_heads(attentions: Mapping[str, AttentionFormat], calibration: Calibration) -> None:
    """Rejects heads whose keys or values have an amax of zero, which gives no scale.

    Centered keys have it if they are constant.

    Args:
        attentions: formats by layer.
        calibration: the calibration.

    Raises:
        GateError: ``VIDC-CALIBRATION-ZERO`` with the first layer and head.
    """
    for name, fmt in attentions.items():
        for part, (tensor, _) in stored_parts(fmt).items():
            for head in (reach(calibration, name, tensor, fmt) == 0).nonzero():
                seen = calibration.amax(f"{name}.{tensor}")[int(head)]
                what = "their mean" if seen.any() else "zero"
                raise GateError(
                    "VIDC-CALIBRATION-ZERO",
                    f"{name}: the {part} of head {int(head)} are {what} throughout the "
                    "calibration: no scale follows from it",
                    "leave the layer out of the recipe's [[attention]], or calibrate again with "
                    "weights in which the head is not dead",
                )


def require_faithful_attention(
    found: Mapping[str, LazyTensor],
    attentions: Mapping[str, AttentionFormat],
    calibration: Calibration | None,
) -> None:
    """Rejects scales that do not match the calibrated ranges of keys and values.

    Raises:
        BuildError: ``VIDC-QUANTIZE-WEIGHTS`` with the first layer.
    """
    for layer, fmt in attentions.items():
        for part, (tensor, kind) in stored_parts(fmt).items():
            assert calibration is not None
            name = f"{layer}.ring.{part}"
            seen = calibration.amax(f"{layer}.{tensor}")
            if fmt.center and part == "keys":
                mean = found[f"{name}.mean"].load()
                low, high = (calibration.tensors[f"{layer}.k.{end}"] for end in ("low", "high"))
                seen = torch.maximum(high - mean, mean - low)
            reached = found[f"{name}.scale"].load() * LARGEST[kind]
            expected = seen.amax(1)
            wrong = ~((reached - expected).abs() <= _SLACK * expected)
            if wrong.any():
                head = int(wrong.nonzero()[0])
                raise BuildError(
                    "VIDC-QUANTIZE-WEIGHTS",
                    f"transformer, {name}.scale: head {head} covers {float(reached[head]):.4g}, "
                    f"the calibration has {float(expected[head]):.4g}",
                    "run vidc cache verify, then build again; if it stays, report it with this "
                    "message",
                )
