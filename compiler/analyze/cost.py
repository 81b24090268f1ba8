"""What time 8 bits save, predicted from a target's peaks."""

from collections.abc import Mapping
from dataclasses import dataclass

from vidc.compiler.config.formats import HIGH, AttentionFormat
from vidc.compiler.config.precision import instead
from vidc.compiler.config.targets import Target
from vidc.compiler.quantize.apply import Quantization, denoising_rows
from vidc.compiler.quantize.calibrated_tensors import linear_sizes
from vidc.compiler.quantize.form import NETWORK, Form
from vidc.compiler.quantize.lowering import QuantizedLinear, linears_of, sites
from vidc.compiler.validate.estimate import CPU_FLOPS_A_CORE, cores
from vidc.exporters.config import ModelConfig
from vidc.plugins.errors import UnavailableError

BYTES = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
CPU_INT8_SPEEDUP = 2.0
"""Of ONNX Runtime's integer products over its float32 ones: a block of the preset ``demo`` that
takes 1.33 times as long without them, with half of its time in such products, says 2; one product
measured alone said 3. `benchmarks/results/quantized-cpu-demo.json`."""
CPU_BYTES_A_CORE = 10e9
"""Bytes a second that a CPU core reads from memory, in round numbers."""
_TERA, _GIGA = 1e12, 1e9


@dataclass(frozen=True)
class Costs:
    """Seconds of a block of a stream: all its denoising passes and the clean one, window full.

    Attributes:
        precision: that ``seconds`` is about.
        seconds: with everything in that precision.
        saved: of them, what a layer in its own format saves, by name of those that have one in 8
            bits; below zero where it costs time.
    """

    precision: str
    seconds: float
    saved: Mapping[str, float]


def predict(
    model: ModelConfig, target: Target, formats: Quantization, form: Form = NETWORK
) -> Costs:
    """The costs of a model's layers on a target.

    A roofline: a layer takes what its multiply-adds take at the peak of the precision that they
    are in, or what its bytes take at the memory's peak, whichever is longer. A Linear reads its
    weight and its input and writes its output; where its input is in 8 bits, reading it in high
    precision and writing it in 8 bits comes on top, shared by the Linears that read the same one
    (kernels that fuse this save more). Weights alone in 8 bits save no time: every backend makes
    them of high precision before the product, in a pass of its own. Nor do products of INT8 where
    the backend's form computes none, whatever the target's peak for them is.
    A self-attention reads its ring once, and multiplies in 8 bits where queries are.

    Peaks are never reached, so times are too short, all of them alike: shares of the whole are
    what to go by. Norms, activations and the VAE are left out.

    High precision is 16 bits on a GPU and float32 on a CPU, of which the target's file has no
    peaks: there they are those of this machine's cores, in round numbers.

    Args:
        model: whose layers.
        target: that they run on.
        formats: of its layers.
        form: of the backend that builds them; one that computes all of it if nobody says.

    Raises:
        UnavailableError: ``VIDC-TARGET-PRECISION``, the target does not have a format;
            ``VIDC-SENSITIVITY-PEAKS``, its file lacks a peak.
    """
    return _Roofline(model, target, form).costs(formats)


class _Roofline:
    def __init__(self, model: ModelConfig, target: Target, form: Form) -> None:
        self._model, self._form = model, form
        self._target = target
        self._high = instead(target.precisions) if target.is_gpu else "fp32"
        self._bandwidth = self._peak("memory", _GIGA)

    def costs(self, formats: Quantization) -> Costs:
        sizes, linears = linear_sizes(self._model), linears_of(formats)
        readers = {m.name: len(ms) for ms in sites(linears.values()).values() for m in ms}
        seconds = {name: self._linear(name, *size) for name, size in sizes.items()}
        saved = {
            name: seconds[name] - self._quantized(linear, *sizes[name], readers.get(name, 1))
            for name, linear in linears.items()
        }
        rings = {name: self._ring(name, AttentionFormat()) for name in formats.attention}
        for name, form in formats.attention.items():
            if form != AttentionFormat():
                less = rings[name] - self._ring(name, form)
                saved[name] = 0.0 if self._form.emulated else less
        total = sum(seconds.values()) + sum(rings.values()) + self._text_attention() + self._patch()
        return Costs(self._high, total, saved)

    def _linear(self, name: str, features_in: int, features_out: int) -> float:
        return self._product(name, features_in, features_out, self._high, self._high, self._high)

    def _quantized(
        self, linear: QuantizedLinear, features_in: int, features_out: int, readers: int
    ) -> float:
        form, name = linear.format, linear.name
        held = not self._form.emulated and (form.activations != "int8" or self._form.integers)
        if not (form.computes and held):
            self._require(form.weights)
            both = BYTES[form.weights] + BYTES[self._high]
            dequantizing = features_in * features_out * both / self._bandwidth
            high = self._linear(name, features_in, features_out)
            return dequantizing * self._calls(name) + high
        both = BYTES[self._high] + BYTES[form.activations]
        quantizing = self._rows(name) * features_in * both / self._bandwidth / readers
        weights, inputs = form.weights, form.activations
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

    def _ring(self, name: str, form: AttentionFormat) -> float:
        stream, sizes = self._model.stream, self._model.transformer
        slots = stream.window * self._model.frame_tokens
        kinds = [self._high if kind == HIGH else kind for kind in (form.keys, form.values)]
        moved = slots * sum(BYTES[kind] for kind in kinds) + 2 * self._tokens * BYTES[self._high]
        computed = form.queries if form.computes else self._high
        for kind in kinds:
            self._require(kind)
        one = self._longer(
            4 * stream.batch * self._tokens * slots * sizes.dim,
            computed,
            stream.batch * sizes.dim * moved,
        )
        # Of the last layer the clean pass needs keys and values alone.
        clean = name != f"blocks.{sizes.layers - 1}.attn1"
        return one * (len(self._model.sampler.steps) + clean)

    def _text_attention(self) -> float:
        sizes, batch = self._model.transformer, self._model.stream.batch
        rows = 2 * (self._tokens + sizes.text_len)
        one = self._longer(
            4 * batch * self._tokens * sizes.text_len * sizes.dim,
            self._high,
            batch * rows * sizes.dim * BYTES[self._high],
        )
        passes = len(self._model.sampler.steps)
        return one * (sizes.layers * (passes + 1) - 1)

    def _patch(self) -> float:
        sizes = self._model.transformer
        pixels = sizes.channels * sizes.patch[1] * sizes.patch[2]
        rows = self._model.stream.batch * self._tokens
        moved = (pixels * sizes.dim + rows * (pixels + sizes.dim)) * BYTES[self._high]
        one = self._longer(2 * rows * pixels * sizes.dim, self._high, moved)
        return one * (len(self._model.sampler.steps) + 1)

    @property
    def _tokens(self) -> int:
        return self._model.stream.block * self._model.frame_tokens

    def _rows(self, name: str) -> int:
        return self._model.stream.batch * denoising_rows(name, self._model)

    def _calls(self, name: str) -> int:
        """How many passes of a block run a Linear; those of the text run once a prompt."""
        last = f"blocks.{self._model.transformer.layers - 1}."
        keys_values = (f"{last}attn1.to_k", f"{last}attn1.to_v")
        if denoising_rows(name, self._model) == 0:
            return 0
        skipped = name == "proj_out" or (name.startswith(last) and name not in keys_values)
        return len(self._model.sampler.steps) + (not skipped)

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
