"""Rings and self-attention in 8 bits: which layers', their scales, and whether these are right."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.compiler.config.formats import AttentionFormat
from vidc.compiler.config.recipe import Recipe
from vidc.compiler.quantize.arithmetic import DTYPES, LARGEST, scale_of
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.form import Form
from vidc.compiler.quantize.heads import reach, require_heads
from vidc.compiler.quantize.lowering import lowered_formats
from vidc.compiler.quantize.tensors import TensorType
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.config import ModelConfig
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import BuildError

_SLACK = 1e-4


@dataclass(frozen=True)
class QuantizedAttention:
    """A self-attention of a recipe whose keys and values are in one format with static scales.

    Attributes:
        name: of the layer.
        format: of keys and values, and of queries where its products are in 8 bits.
        heads: how many.
        head_dim: channels of each.
    """

    name: str
    format: AttentionFormat
    heads: int
    head_dim: int

    @property
    def dtype(self) -> str:
        """Of its numbers, by name."""
        return dtype_name(DTYPES[self.format.keys])

    @property
    def key_scale(self) -> str:
        """The scale of each head's keys, float32 ``[H]``."""
        return f"{self.name}.key_scale"

    @property
    def value_scale(self) -> str:
        """The scale of each head's values, float32 ``[H]``."""
        return f"{self.name}.value_scale"

    @property
    def key_mean(self) -> str | None:
        """What keys lack, float32 ``[H, D]``; None where they are not centered."""
        return f"{self.name}.key_mean" if self.format.center else None


def quantized_attention(
    recipe: Recipe, model: ModelConfig, form: Form
) -> dict[str, QuantizedAttention]:
    """The self-attentions whose keys and values a recipe means to have in 8 bits, by name.

    Raises:
        UnavailableError: ``VIDC-RECIPE-LOWERING``, it asks for what the form does not hold.
        UsageError: ``VIDC-RECIPE-LAYER``.
    """
    formats = lowered_formats(recipe, model, form)
    sizes = (model.transformer.heads, model.transformer.head_dim)
    return {
        name: QuantizedAttention(name, f, *sizes)
        for name, f in formats.attention.items()
        if f != AttentionFormat()
    }


def attention_types(attentions: Mapping[str, QuantizedAttention]) -> dict[str, TensorType]:
    """The tensors that a quantized weights file has for them."""
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
    """The tensors of ``attention_types``.

    Raises:
        ValueError: there is no calibration, and it is needed.
        GateError: ``VIDC-CALIBRATION-ZERO``, a head has nothing to round.
    """
    made: dict[str, Callable[[], Tensor]] = {}
    for each in attentions.values():
        if calibration is None:
            raise ValueError(f"{each.name} has static scales, and there is no calibration")
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


def require_faithful_attention(
    found: Mapping[str, LazyTensor],
    attentions: Mapping[str, QuantizedAttention],
    calibration: Calibration | None,
) -> None:
    """Refuses scales that do not reach to what the calibration saw of keys and values.

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
                    f"transformer, {name}: head {head} reaches to {float(reached[head]):.4g}, the "
                    f"calibration to {float(expected[head]):.4g}",
                    "run vidc cache verify, then build again; if it stays, report it with this "
                    "message",
                )
