"""Roofline prediction of the time that quantization saves."""

from collections.abc import Mapping
from dataclasses import dataclass

from vidc.compiler.config.precision import instead
from vidc.compiler.config.recipe import HIGH, AttentionFormat
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.calibrated_tensors import linear_sizes
from vidc.compiler.quantize.linears import LinearSpec, by_owner, linears_of
from vidc.compiler.quantize.support import TENSORRT, QuantizationSupport
from vidc.compiler.validate.estimate import CPU_FLOPS_A_CORE, cores
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UnavailableError

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
CPU_INT8_SPEEDUP = 2.0
"""Speedup of ONNX Runtime's INT8 matmuls over float32 in the preset ``demo``: about 2 with the
operations that quantize for them, 3 without (``benchmarks/results/quantized-cpu-demo.json``)."""
CPU_BYTES_A_CORE = 10e9
"""Memory bandwidth of a CPU core in bytes per second, rounded."""
_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Costs:
    """Predicted time of a block: its denoising passes and the clean pass, with a full window.

    Attributes:
        precision: name of the high precision.
        seconds: time of the block with all layers in that precision.
        saved: seconds that each quantized layer saves, by name; negative if it costs time.
    """

    precision: str
    seconds: float
    saved: Mapping[str, float]


def predict(
    model: Family,
    target: Target,
    formats: Quantization,
    support: QuantizationSupport = TENSORRT,
) -> Costs:
    """Predicts the costs of a model's layers on a target by a roofline.

    A layer takes the longer of its FLOPs at the precision's peak and its bytes at the memory's
    peak. A linear layer reads its weight and input and writes its output. A quantized input adds a
    read in high precision and a write in 8 bits, shared by the layers that read it; fused kernels
    save more. 8-bit weights alone save no time, because every backend dequantizes them in a pass of
    its own. INT8 matmuls save none if the backend has no such matmul. A self-attention reads its
    ring once, and multiplies in 8 bits if queries are quantized.

    Absolute times are too short, because peaks are not reached; use the shares. Norms, activations
    and the VAE are omitted. High precision is 16 bits on a GPU and float32 on a CPU, whose peaks
    are rounded figures for this machine's cores.

    Args:
        model: the model.
        target: the target.
        formats: formats of the model's layers.
        support: the backend's quantization support.

    Raises:
        UnavailableError: ``VIDC-TARGET-PRECISION``, the target does not support a format;
            ``VIDC-SENSITIVITY-PEAKS``, the target's file lacks a peak.
    """
    return _Roofline(model, target, support).costs(formats)


class _Roofline:
    def __init__(self, model: Family, target: Target, support: QuantizationSupport) -> None:
        self._model, self._support = model, support
        self._attentions = model.quantized_part.attentions
        self._target = target
        self._high = instead(target.precisions) if target.is_gpu else "fp32"
        self._bandwidth = self._peak("memory", _GIGA)

    def costs(self, formats: Quantization) -> Costs:
        sizes, linears = linear_sizes(self._model), linears_of(formats)
        readers = {m.name: len(ms) for ms in by_owner(linears.values()).values() for m in ms}
        seconds = {name: self._linear(name, *size) for name, size in sizes.items()}
        saved = {
            name: seconds[name] - self._quantized(linear, *sizes[name], readers.get(name, 1))
            for name, linear in linears.items()
        }
        rings = {name: self._ring(name, AttentionFormat()) for name in formats.attention}
        for name, fmt in formats.attention.items():
            if fmt != AttentionFormat():
                less = rings[name] - self._ring(name, fmt)
                saved[name] = 0.0 if self._support.emulated else less
        total = sum(seconds.values()) + sum(rings.values()) + self._fixed()
        return Costs(self._high, total, saved)

    def _linear(self, name: str, features_in: int, features_out: int) -> float:
        return self._product(name, features_in, features_out, self._high, self._high, self._high)

    def _quantized(
        self, linear: LinearSpec, features_in: int, features_out: int, readers: int
    ) -> float:
        fmt, name = linear.format, linear.name
        int8 = fmt.activations == "int8"
        supported = not self._support.emulated and (self._support.int8_matmul or not int8)
        if not (fmt.computes and supported):
            self._require(fmt.weights)
            both = BYTES[fmt.weights] + BYTES[self._high]
            dequantizing = features_in * features_out * both / self._bandwidth
            high = self._linear(name, features_in, features_out)
            return dequantizing * self._calls(name) + high
        both = BYTES[self._high] + BYTES[fmt.activations]
        quantizing = self._rows(name) * features_in * both / self._bandwidth / readers
        weights, inputs = fmt.weights, fmt.activations
        return quantizing * self._calls(name) + self._product(
            name, features_in, features_out, inputs, weights, inputs
        )

    def _product(
        self, name: str, features_in: int, features_out: int, computed: str, weight: str, x: str
    ) -> float:
        self._require(weight)
        rows = self._rows(name)
        moved = (
            features_in * features_out * BYTES[weight]
            + rows * features_in * BYTES[x]
            + rows * features_out * BYTES[self._high]
        )
        one = self._longer(2 * rows * features_in * features_out, computed, moved)
        return one * self._calls(name)

    def _ring(self, name: str, fmt: AttentionFormat) -> float:
        attention = self._attentions[name]
        width = attention.heads * attention.head_dim
        kinds = [self._high if kind == HIGH else kind for kind in (fmt.keys, fmt.values)]
        read = attention.batch * attention.slots * sum(BYTES[kind] for kind in kinds)
        moved = read + 2 * attention.tokens * BYTES[self._high]
        computed = fmt.queries if fmt.computes else self._high
        for kind in kinds:
            self._require(kind)
        flops = 4 * attention.tokens * attention.slots * width
        return self._longer(flops, computed, width * moved) * self._calls(name)

    def _fixed(self) -> float:
        return sum(
            self._longer(work.flops, self._high, work.elements * BYTES[self._high]) * work.calls
            for work in self._model.fixed_work()
        )

    def _rows(self, name: str) -> int:
        return self._model.quantized_part.rows(name)

    def _calls(self, name: str) -> int:
        return self._model.calls(name)

    def _longer(self, flops: float, precision: str, moved: float) -> float:
        return max(flops / self._peak(precision, _TERA), moved / self._bandwidth)

    def _require(self, precision: str) -> None:
        if precision not in self._target.precisions:
            raise UnavailableError(
                "VIDC-TARGET-PRECISION",
                f"{self._target.name} has no {precision}; it has "
                f"{', '.join(self._target.precisions)}",
                "pass --recipe with another, or --for with a target that has it",
            )

    def _peak(self, name: str, unit: float) -> float:
        if name != "memory":
            self._require(name)
        peak: float | None = getattr(self._target.peaks, name)
        if peak is not None:
            return peak * unit
        if not self._target.is_gpu:
            machine = {
                "fp32": CPU_FLOPS_A_CORE,
                "int8": CPU_FLOPS_A_CORE * CPU_INT8_SPEEDUP,
                "memory": CPU_BYTES_A_CORE,
            }
            if name in machine:
                return machine[name] * cores()
        raise UnavailableError(
            "VIDC-SENSITIVITY-PEAKS",
            f"the file of target {self._target.name} has no peak for {name}",
            "pass --for with another target, or add it to the file's [peaks]",
        )
