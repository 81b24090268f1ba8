"""Layers of a transformer in the numbers of 8 bits, computed in floating point."""

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
from vidc.compiler.quantize.form import GRAPH, Form
from vidc.compiler.quantize.lowering import QuantizedLinear, linears_of
from vidc.compiler.quantize.tensors import (
    bias_name,
    input_factor_name,
    input_mean_name,
    input_scale_name,
    weight_name,
    weight_scale_name,
)
from vidc.compiler.quantize.weights import quantized_weights
from vidc.exporters.causal_wan.model import CausalWan
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.ops.ring import ring_attention, ring_write
from vidc.runtime.engines import Engine, Wrapper
from vidc.runtime.states import Buffers, States

See = Callable[[Tensor, Tensor, str], None]
"""Looks at values, their scale and their format."""


def _nothing(values: Tensor, scale: Tensor, form: str) -> None:
    pass


class FakeLinear(nn.Module):
    """A Linear over what a quantized weights file holds of it.

    Args:
        linear: in high precision.
        form: of the quantized one.
        values: its weight in 8 bits, ``[out, in]``.
        scale: of each output channel, ``[out]``: with ``products`` the input's is part of it.
        factor: what its input is multiplied with before, ``[in]``, None without SmoothQuant.
        input_scale: a scalar; None where activations stay high, or have a scale a token.
        center: what is taken off its input before, ``[in]``, and its bias then; None for neither.
        see: is shown the input, its static scale and its format.
        products: whether static scales are those of products, as programs have them.
    """

    def __init__(
        self,
        linear: nn.Linear,
        form: LinearFormat,
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
        self._format, self._see = form, see
        self._values, self._scale = values.to(device), scale.to(device).float()
        self._factor = None if factor is None else factor.to(device).float()
        self._input_scale = None if input_scale is None else input_scale.to(device).float()

    def forward(self, x: Tensor) -> Tensor:
        """``[..., in]`` to ``[..., out]``, of the same dtype; products are summed in float32."""
        if not self._format.computes:
            weight = self._values.float() * self._scale[:, None]
            return F.linear(x, weight.to(x.dtype), self.bias)
        inputs = x.float() if self._mean is None else x.float() - self._mean
        inputs = inputs if self._factor is None else inputs * self._factor
        form, scale = self._format.activations, self._input_scale
        if scale is None:
            scale = scale_of(inputs.abs().amax(-1, keepdim=True), form)
            spread = scale * self._scale
        else:
            self._see(inputs, scale, form)
            spread = self._scale if self._products else scale * self._scale
        values = quantize(inputs, scale, form).float()
        out = F.linear(values, self._values.float()) * spread
        return (out if self.bias is None else out + self.bias.float()).to(x.dtype)


class FakeAttention:
    """What a self-attention's queries, keys and values become in 8 bits.

    The weights that the softmax gives stay as they are, whatever a kernel does to them.

    Args:
        name: of the self-attention.
        form: what is quantized of it.
        calibration: its ranges.
        device: where it runs.
        see: is shown what is rounded by a static scale, the scale and the format.
    """

    def __init__(
        self,
        name: str,
        form: AttentionFormat,
        calibration: Calibration,
        device: torch.device,
        see: See = _nothing,
    ) -> None:
        self._see = see
        self._forms = {"q": form.queries, "k": form.keys, "v": form.values}
        self._static = form.scale == STATIC
        self._mean: Tensor | None = None
        # Queries have a scale for each token and head in every engine: nothing keeps them.
        amax = {part: calibration.amax(f"{name}.{part}") for part in "kv"}
        if form.center:
            self._mean = calibration.tensors[f"{name}.k.mean"].to(device)
            amax["k"] = calibration.centred_amax(f"{name}.k")
        # One a head.
        self._amax = {p: value.amax(-1, keepdim=True).to(device) for p, value in amax.items()}

    def quantized(self, part: str, x: Tensor) -> Tensor:
        """Queries, keys or values (``q``, ``k``, ``v``) ``[B, T, H, D]``, keys less their mean.

        The mean is added again, so that rings hold what a reader of them expects; softmax does not
        see it.
        """
        form = self._forms[part]
        if form == HIGH:
            return x
        mean = self._mean if part == "k" and self._mean is not None else 0.0
        values = x.float() - mean
        static = self._static and part != "q"
        amax = self._amax[part] if static else values.abs().amax(-1, keepdim=True)
        scale = scale_of(amax, form)
        if static:
            self._see(values, scale, form)
        return (quantize(values, scale, form).float() * scale + mean).to(x.dtype)


class FakeQuantizer:
    """Puts layers of a network in 8 bits, and back.

    Numbers are those that a build stores: weights, scales and SmoothQuant's factors come from
    ``quantized_weights``. What a kernel rounds besides is not imitated.

    Args:
        network: in high precision, which is changed and changed back.
        formats: of its layers.
        calibration: of its weights; None where no layer takes ranges.
        clipping: watches what its layers round; nobody does if None.
        form: of the backend whose numbers they are: graphs have scales in the weights' dtype,
            programs in float32.
    """

    def __init__(
        self,
        network: CausalWan,
        formats: Quantization,
        calibration: Calibration | None,
        clipping: Clipping | None = None,
        form: Form = GRAPH,
    ) -> None:
        self._network, self._form = network, form
        self._clipping = clipping
        self.device = network.proj_out.weight.device
        """Where it runs."""
        self._calibration = calibration
        self._linears = linears_of(formats)
        self._forms = {n: f for n, f in formats.attention.items() if f != AttentionFormat()}
        weights = {weight_name(name): self._lazy(name) for name in self._linears}
        weights |= {
            bias_name(name): self._lazy(name, "bias")
            for name in self._linears
            if self._linear(name).bias is not None
        }
        self._stored = quantized_weights(weights, self._linears, calibration, form)
        self._active: dict[str, FakeAttention] = {}

    @property
    def layers(self) -> tuple[str, ...]:
        """All that have a format in 8 bits."""
        return (*self._linears, *self._forms)

    @contextmanager
    def quantized(self, layers: Collection[str]) -> Iterator[None]:
        """Has these layers in 8 bits; those that have no format in 8 bits are an error, KeyError.

        Layers whose inputs share a scale must come together.
        """
        attention = [name for name in layers if name in self._forms]
        originals = {name: self._linear(name) for name in layers if name not in self._forms}
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
        """The network's components, whose attention is in 8 bits where that is asked for."""
        return {name: _FakeEngine(name, engine, self) for name, engine in engines.items()}

    def attention(self, ring: str) -> FakeAttention | None:
        """Of ``ring.k.0`` or another."""
        return self._active.get(f"blocks.{ring.rpartition('.')[2]}.attn1")

    @property
    def quantizes_attention(self) -> bool:
        """Whether any attention is in 8 bits at this moment."""
        return bool(self._active)

    def called(self, component: str) -> None:
        """Says whose call comes next."""
        if self._clipping is not None:
            self._clipping.component = component

    def _seen_by(self, layer: str, limits: Limits) -> See:
        return _nothing if self._clipping is None else partial(self._clipping.see, layer, limits)

    def _attention(self, name: str) -> FakeAttention:
        assert self._calibration is not None
        see = self._seen_by(name, OF_RINGS)
        return FakeAttention(name, self._forms[name], self._calibration, self.device, see)

    def _linear(self, name: str) -> nn.Linear:
        module = self._network.get_submodule(name)
        assert isinstance(module, nn.Linear)
        return module

    def _lazy(self, name: str, of: str = "weight") -> LazyTensor:
        weight = getattr(self._linear(name), of)
        return LazyTensor(tuple(weight.shape), weight.dtype, partial(_on_cpu, weight))

    def _fake(self, linear: QuantizedLinear, original: nn.Linear) -> FakeLinear:
        name, site, form = linear.name, linear.site, linear.format
        static = site is not None and form.scale == STATIC
        return FakeLinear(
            original,
            form,
            self._stored[weight_name(name)].load(),
            self._stored[weight_scale_name(name, self._form)].load(),
            self._stored[input_factor_name(site)].load() if site and form.smooth else None,
            self._stored[input_scale_name(site)].load() if site and static else None,
            (self._stored[input_mean_name(site)].load(), self._stored[bias_name(name)].load())
            if site and form.center
            else None,
            self._seen_by(name, OF_LINEARS),
            self._form.products,
        )


def _on_cpu(tensor: Tensor) -> Tensor:
    # Where the calibration is, with which it is multiplied.
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
    """Quantizes what is written to rings, and the queries over them."""

    def __init__(self, rings: Mapping[int, str], quantizer: FakeQuantizer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rings = rings
        self._quantizer = quantizer

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Changes the arguments of the ring's operators, and runs any operation."""
        if func is ring_write:
            ring = self._rings[args[0].data_ptr()]
            args = (args[0], self._changed(ring, ring.split(".")[1], args[1]), *args[2:])
        elif func is ring_attention:
            args = (self._changed(self._rings[args[1].data_ptr()], "q", args[0]), *args[1:])
        return func(*args, **(kwargs or {}))

    def _changed(self, ring: str, part: str, x: Tensor) -> Tensor:
        attention = self._quantizer.attention(ring)
        return x if attention is None else attention.quantized(part, x)
