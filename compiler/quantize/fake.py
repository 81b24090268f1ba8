"""Fake quantization of a transformer: 8-bit values, computed in floating point."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from vidc.compiler.config.formats import HIGH, STATIC, AttentionFormat, LinearFormat
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.arithmetic import quantize, scale_of
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.clipping import OF_LINEARS, OF_RINGS, Clipping, Limits
from vidc.compiler.quantize.lowering import QuantizedLinear, linears_of
from vidc.compiler.quantize.support import ONNX, QuantizationSupport
from vidc.compiler.quantize.tensors import (
    bias_name,
    input_factor_name,
    input_mean_name,
    input_scale_name,
    weight_name,
    weight_scale_name,
)
from vidc.compiler.quantize.weights import quantized_weights
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.ops.ring import ring_attention, ring_write
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.states import Buffers, States

See = Callable[[Tensor, Tensor, str], None]
"""Callback that receives values, their static scale and their format."""


def _nothing(values: Tensor, scale: Tensor, fmt: str) -> None:
    pass


class FakeLinear(nn.Module):
    """Linear layer with the tensors of a quantized weights file.

    Args:
        linear: the layer in high precision.
        fmt: its format.
        values: 8-bit weight, ``[out, in]``.
        scale: per-channel scale, ``[out]``; includes the static input scale if ``products``.
        factor: multiplier of the input, ``[in]``; None without SmoothQuant.
        input_scale: static scale, a scalar; None for high-precision or per-token activations.
        center: mean of the input, ``[in]``, and bias that makes up for it; None if not centered.
        see: receives the input, its static scale and its format.
        products: True if ``scale`` includes the static input scale.
    """

    def __init__(
        self,
        linear: nn.Linear,
        fmt: LinearFormat,
        values: Tensor,
        scale: Tensor,
        factor: Tensor | None,
        input_scale: Tensor | None,
        center: tuple[Tensor, Tensor] | None,
        see: See = _nothing,
        products: bool = False,
    ) -> None:
        super().__init__()
        self._products = products
        device = linear.weight.device
        # The network asks its layers for their dtype.
        self.weight, self.bias = linear.weight, linear.bias
        self._mean: Tensor | None = None
        if center is not None:
            mean, bias = center
            self._mean = mean.to(device).float()
            self.bias = nn.Parameter(bias.to(device), requires_grad=False)
        self._format, self._see = fmt, see
        self._values, self._scale = values.to(device), scale.to(device).float()
        self._factor = None if factor is None else factor.to(device).float()
        self._input_scale = None if input_scale is None else input_scale.to(device).float()

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., in]`` to ``[..., out]`` of the same dtype, summed in float32."""
        if not self._format.computes:
            weight = self._values.float() * self._scale[:, None]
            return F.linear(x, weight.to(x.dtype), self.bias)
        inputs = x.float() if self._mean is None else x.float() - self._mean
        inputs = inputs if self._factor is None else inputs * self._factor
        fmt, scale = self._format.activations, self._input_scale
        if scale is None:
            scale = scale_of(inputs.abs().amax(-1, keepdim=True), fmt)
            spread = scale * self._scale
        else:
            self._see(inputs, scale, fmt)
            spread = self._scale if self._products else scale * self._scale
        values = quantize(inputs, scale, fmt).float()
        out = F.linear(values, self._values.float()) * spread
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)


class FakeAttention:
    """Fake quantization of a self-attention's queries, keys and values.

    Softmax weights are not quantized.

    Args:
        name: name of the self-attention.
        fmt: its format.
        calibration: the calibration.
        device: device of the tensors.
        see: receives values with a static scale, the scale and the format.
    """

    def __init__(
        self,
        name: str,
        fmt: AttentionFormat,
        calibration: Calibration,
        device: torch.device,
        see: See = _nothing,
    ) -> None:
        self._see = see
        self._formats = {"q": fmt.queries, "k": fmt.keys, "v": fmt.values}
        self._static = fmt.scale == STATIC
        self._mean: Tensor | None = None
        # All engines quantize queries with a scale per token and head.
        amax = {part: calibration.amax(f"{name}.{part}") for part in "kv"}
        if fmt.center:
            self._mean = calibration.tensors[f"{name}.k.mean"].to(device)
            amax["k"] = calibration.centered_amax(f"{name}.k")
        # Per head.
        self._amax = {p: value.amax(-1, keepdim=True).to(device) for p, value in amax.items()}

    def quantized(self, part: str, x: Tensor) -> Tensor:
        """Fake-quantizes queries, keys or values (``q``, ``k``, ``v``), ``[B, T, H, D]``.

        Centered keys get their mean back, so that the ring has the usual values.
        """
        fmt = self._formats[part]
        if fmt == HIGH:
            return x
        mean = self._mean if part == "k" and self._mean is not None else 0.0
        values = x.float() - mean
        static = self._static and part != "q"
        amax = self._amax[part] if static else values.abs().amax(-1, keepdim=True)
        scale = scale_of(amax, fmt)
        if static:
            self._see(values, scale, fmt)
        return (quantize(values, scale, fmt).float() * scale + mean).to(x.dtype)


class FakeQuantizer:
    """Switches layers of a network to fake quantization and back.

    Weights, scales and SmoothQuant's factors are those of a build, from ``quantized_weights``.
    Other rounding in kernels is not simulated.

    Args:
        network: network in high precision; changed and restored.
        formats: formats of its layers.
        calibration: calibration of its weights; None if no layer needs one.
        clipping: records clipping errors; None for no record.
        support: the backend's quantization support, which defines the layout of scales.
    """

    def __init__(
        self,
        network: nn.Module,
        formats: Quantization,
        calibration: Calibration | None,
        clipping: Clipping | None = None,
        support: QuantizationSupport = ONNX,
    ) -> None:
        self._network, self._support = network, support
        self._clipping = clipping
        self.device = next(network.parameters()).device
        """The network's device."""
        self._calibration = calibration
        self._linears = linears_of(formats)
        self._formats = {n: f for n, f in formats.attention.items() if f != AttentionFormat()}
        weights = {weight_name(name): self._lazy(name) for name in self._linears}
        weights |= {
            bias_name(name): self._lazy(name, "bias")
            for name in self._linears
            if self._linear(name).bias is not None
        }
        self._stored = quantized_weights(weights, self._linears, calibration, support)
        self._active: dict[str, FakeAttention] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers with 8-bit formats."""
        return (*self._linears, *self._formats)

    @contextmanager
    def quantized(self, layers: Collection[str]) -> Iterator[None]:
        """Quantizes these layers within the context; KeyError for layers without 8-bit formats.

        Layers that share an input scale must come together.
        """
        attention = [name for name in layers if name in self._formats]
        originals = {name: self._linear(name) for name in layers if name not in self._formats}
        try:
            for name, original in originals.items():
                self._network.set_submodule(name, self._fake(self._linears[name], original))
            self._active = {name: self._attention(name) for name in attention}
            yield
        finally:
            self._active = {}
            for name, original in originals.items():
                self._network.set_submodule(name, original)

    def engines(self, engines: Mapping[str, Engine]) -> dict[str, Engine]:
        """Wraps the network's components so that their attention is fake-quantized."""
        return {name: _FakeEngine(name, engine, self) for name, engine in engines.items()}

    def attention(self, ring: str) -> FakeAttention | None:
        """Returns the active fake attention of a ring such as ``ring.k.0``, or None."""
        return self._active.get(f"blocks.{ring.rpartition('.')[2]}.attn1")

    @property
    def quantizes_attention(self) -> bool:
        """True if an attention is quantized in the current context."""
        return bool(self._active)

    def called(self, component: str) -> None:
        """Records the name of the component that runs next."""
        if self._clipping is not None:
            self._clipping.component = component

    def _seen_by(self, layer: str, limits: Limits) -> See:
        return _nothing if self._clipping is None else partial(self._clipping.see, layer, limits)

    def _attention(self, name: str) -> FakeAttention:
        assert self._calibration is not None
        see = self._seen_by(name, OF_RINGS)
        return FakeAttention(name, self._formats[name], self._calibration, self.device, see)

    def _linear(self, name: str) -> nn.Linear:
        module = self._network.get_submodule(name)
        assert isinstance(module, nn.Linear)
        return module

    def _lazy(self, name: str, of: str = "weight") -> LazyTensor:
        weight = getattr(self._linear(name), of)
        return LazyTensor(tuple(weight.shape), weight.dtype, partial(_on_cpu, weight))

    def _fake(self, linear: QuantizedLinear, original: nn.Linear) -> FakeLinear:
        name, site, fmt = linear.name, linear.site, linear.format
        static = site is not None and fmt.scale == STATIC
        return FakeLinear(
            original,
            fmt,
            self._stored[weight_name(name)].load(),
            self._stored[weight_scale_name(name, self._support)].load(),
            self._stored[input_factor_name(site)].load() if site and fmt.smooth else None,
            self._stored[input_scale_name(site)].load() if site and static else None,
            (self._stored[input_mean_name(site)].load(), self._stored[bias_name(name)].load())
            if site and fmt.center
            else None,
            self._seen_by(name, OF_LINEARS),
            self._support.product_scales,
        )


def _on_cpu(tensor: Tensor) -> Tensor:
    # The calibration is on the CPU.
    return tensor.detach().cpu()


class _FakeEngine(Wrapper):
    def __init__(self, name: str, engine: Engine, quantizer: FakeQuantizer) -> None:
        super().__init__(engine)
        self._name = name
        self._quantizer = quantizer

    def run(self, buffers: Buffers, states: States) -> None:
        self._quantizer.called(self._name)
        if not self._quantizer.quantizes_attention:
            self._engine.run(buffers, states)
            return
        rings = [spec.name for spec in self.signature.states if spec.name.startswith("ring.")]
        with _RingOperators({states[ring].data_ptr(): ring for ring in rings}, self._quantizer):
            self._engine.run(buffers, states)


class _RingOperators(TorchDispatchMode):
    """Dispatch mode that quantizes the writes to rings and the queries to them."""

    def __init__(self, rings: Mapping[int, str], quantizer: FakeQuantizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rings = rings
        self._quantizer = quantizer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Quantizes the arguments of ring operators, and runs any operation."""
        if func is ring_write:
            ring = self._rings[args[0].data_ptr()]
            args = (args[0], self._changed(ring, ring.split(".")[1], args[1]), *args[2:])
        elif func is ring_attention:
            args = (self._changed(self._rings[args[1].data_ptr()], "q", args[0]), *args[1:])
        return func(*args, **(kwargs or {}))

    def _changed(self, ring: str, part: str, x: Tensor) -> Tensor:
        attention = self._quantizer.attention(ring)
        return x if attention is None else attention.quantized(part, x)
