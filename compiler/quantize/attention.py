"""Quantized self-attentions and rings: scales from a calibration, and their check."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.compiler.config.formats import HIGH, STATIC, AttentionFormat
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.arithmetic import DTYPES, LARGEST, scale_of
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.lowering import lowered_formats
from vidc.compiler.quantize.support import QuantizationSupport
from vidc.compiler.quantize.tensors import TensorType
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.families.family import Family
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import BuildError, GateError

_SLACK = 1e-4
_PARTS = {"k": "keys", "v": "values"}


@dataclass(frozen=True)
class QuantizedAttention:
    """Quantized self-attention, with keys and values in one format with static scales.

    Attributes:
        name: name of the layer.
        format: its format.
        heads: number of heads.
        head_dim: channels of a head.
    """

    name: str
    format: AttentionFormat
    heads: int
    head_dim: int

    @property
    def dtype(self) -> str:
        """Name of the dtype of keys and values."""
        return dtype_name(DTYPES[self.format.keys])

    @property
    def key_scale(self) -> str:
        """Name of the keys' per-head scale, float32 ``[H]``."""
        return f"{self.name}.key_scale"

    @property
    def value_scale(self) -> str:
        """Name of the values' per-head scale, float32 ``[H]``."""
        return f"{self.name}.value_scale"

    @property
    def key_mean(self) -> str | None:
        """Name of the mean subtracted from keys, float32 ``[H, D]``; None if not centered."""
        return f"{self.name}.key_mean" if self.format.center else None


def quantized_attention(
    recipe: Recipe, model: Family, support: QuantizationSupport
) -> dict[str, QuantizedAttention]:
    """Returns a recipe's quantized self-attentions by name; raises as ``quantized_linears``."""
    formats = lowered_formats(recipe, model, support)
    sizes = model.quantized_part.attentions
    return {
        name: QuantizedAttention(name, f, sizes[name].heads, sizes[name].head_dim)
        for name, f in formats.attention.items()
        if f != AttentionFormat()
    }


def attention_types(attentions: Mapping[str, QuantizedAttention]) -> dict[str, TensorType]:
    """Returns the tensors that a quantized weights file has for self-attentions."""
    types: dict[str, TensorType] = {}
    for each in attentions.values():
        for name in (each.key_scale, each.value_scale):
            types[name] = TensorType((each.heads,), torch.float32)
        if each.key_mean is not None:
            types[each.key_mean] = TensorType((each.heads, each.head_dim), torch.float32)
    return types


def attention_weights(
    attentions: Mapping[str, QuantizedAttention], calibration: Calibration | None
) -> dict[str, LazyTensor]:
    """Returns the tensors of ``attention_types``.

    Raises:
        ValueError: a calibration is needed and missing.
        GateError: ``VIDC-CALIBRATION-ZERO``, a head is constant.
    """
    made: dict[str, Callable[[], Tensor]] = {}
    for each in attentions.values():
        if calibration is None:
            raise ValueError(f"{each.name} has static scales and needs a calibration")
        require_heads({each.name: each.format}, calibration)
        made |= _scales(each, calibration)
    types = attention_types(attentions)
    return {name: LazyTensor(t.shape, t.dtype, made[name]) for name, t in types.items()}


def _scales(each: QuantizedAttention, calibration: Calibration) -> dict[str, Callable[[], Tensor]]:
    def scale(part: str) -> Tensor:
        seen = reach(calibration, each.name, part, each.format)
        return scale_of(seen, each.format.keys).contiguous()

    made: dict[str, Callable[[], Tensor]] = {
        each.key_scale: lambda: scale("k"),
        each.value_scale: lambda: scale("v"),
    }
    if each.key_mean is not None:
        made[each.key_mean] = lambda: calibration.mean(f"{each.name}.k").contiguous()
    return made


def reach(calibration: Calibration, name: str, part: str, fmt: AttentionFormat) -> Tensor:
    """Returns the per-head amax, ``[H]``, of a ring's keys or values, less the mean if centered.

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
    """Rejects constant heads, from which no static scale follows.

    Args:
        attentions: formats by layer.
        calibration: the calibration.

    Raises:
        GateError: ``VIDC-CALIBRATION-ZERO`` with the first layer and head.
    """
    for name, fmt in attentions.items():
        if fmt.scale != STATIC:
            continue
        for part, kind in (("k", fmt.keys), ("v", fmt.values)):
            dead = () if kind == HIGH else (reach(calibration, name, part, fmt) == 0).nonzero()
            for head in dead:
                seen = calibration.amax(f"{name}.{part}")[int(head)]
                what = "their mean" if seen.any() else "zero"
                raise GateError(
                    "VIDC-CALIBRATION-ZERO",
                    f"{name}: the {_PARTS[part]} of head {int(head)} are {what} throughout the "
                    "calibration: no scale follows from it",
                    "leave the layer out of the recipe's [[attention]], or calibrate again with "
                    "weights in which the head is not dead",
                )


def require_faithful_attention(
    found: Mapping[str, LazyTensor],
    attentions: Mapping[str, QuantizedAttention],
    calibration: Calibration | None,
) -> None:
    """Rejects scales that do not match the calibrated ranges of keys and values.

    Raises:
        BuildError: ``VIDC-QUANTIZE-WEIGHTS`` with the first layer.
    """
    for each in attentions.values():
        assert calibration is not None
        keys = calibration.amax(f"{each.name}.k")
        if each.key_mean is not None:
            mean = found[each.key_mean].load()
            low, high = (calibration.tensors[f"{each.name}.k.{end}"] for end in ("low", "high"))
            keys = torch.maximum(high - mean, mean - low)
        values = calibration.amax(f"{each.name}.v")
        for name, seen in ((each.key_scale, keys), (each.value_scale, values)):
            reached = found[name].load() * LARGEST[each.format.keys]
            expected = seen.amax(1)
            wrong = ~((reached - expected).abs() <= _SLACK * expected)
            if wrong.any():
                head = int(wrong.nonzero()[0])
                raise BuildError(
                    "VIDC-QUANTIZE-WEIGHTS",
                    f"transformer, {name}: head {head} covers {float(reached[head]):.4g}, the "
                    f"calibration has {float(expected[head]):.4g}",
                    "run vidc cache verify, then build again; if it stays, report it with this "
                    "message",
                )
