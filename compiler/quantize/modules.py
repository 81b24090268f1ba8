"""Quantized modules, which replace linear layers, convolutions and the modules of KV rings.

Reference, export and analysis all use the network with these modules. Their tensors are on the meta
device until ``quantized_state`` or a weights file is loaded.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from vidc.compiler.config.recipe import HIGH, STATIC, AttentionFormat, LinearFormat
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.arithmetic import DTYPES
from vidc.compiler.quantize.calibrated_tensors import is_quantizable
from vidc.compiler.quantize.linears import LinearSpec, linears_of
from vidc.exporters.component import Component
from vidc.exporters.kv_ring import RingStorage
from vidc.exporters.part import Attention, Part
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.fake_quantize import fake_quantize
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d
from vidc.plugins.ops.quantized_linear import prepared, quantized_linear
from vidc.plugins.signature import Rounding, Signature, TensorSpec

QUERIES, KEYS, VALUES = "queries", "keys", "values"


class InputQuantizer(nn.Module):
    """Scales of a quantized tensor, shared by the linear layers that read it.

    Args:
        features: channels of the tensor.
        fmt: format of those layers.
    """

    def __init__(self, features: int, fmt: LinearFormat) -> None:
        super().__init__()
        self.scale = _empty() if fmt.scale == STATIC else None
        self.pre_quant_scale = _empty(features) if fmt.smooth else None
        self.mean = _empty(features) if fmt.center else None

    def prepared(self, x: Tensor) -> Tensor:
        """Returns ``x`` in float32, centered and smoothed if the format says so."""
        return prepared(x, self.pre_quant_scale, self.mean)


class QuantizedLinear(nn.Module):
    """Linear layer with an 8-bit weight and, if its format says so, an 8-bit input.

    Args:
        linear: the layer in high precision.
        spec: its name and format.
        shared: the input's quantizer if another layer owns it; otherwise None.
    """

    def __init__(self, linear: nn.Linear, spec: LinearSpec, shared: InputQuantizer | None) -> None:
        super().__init__()
        self.format = spec.format
        if spec.format.center and linear.bias is None:
            raise BuildError(
                "VIDC-QUANTIZE-GRAPH",
                f"{spec.name} has no bias, which centering needs",
                "leave center out of the recipe's rule for this layer",
            )
        dtype = DTYPES[spec.format.weights]
        self.weight = _empty(linear.out_features, linear.in_features, dtype=dtype)
        self.weight_scale = _empty(linear.out_features)
        bias = linear.bias
        self.bias = None if bias is None else _empty(*bias.shape, dtype=bias.dtype)
        self.input_quantizer: InputQuantizer | None
        if shared is not None:
            # Not registered as a child, so that its tensors have their owner's names only.
            self.__dict__["input_quantizer"] = shared
        elif spec.owner is not None:
            self.input_quantizer = InputQuantizer(linear.in_features, spec.format)
        else:
            self.input_quantizer = None

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[..., in]`` to ``[..., out]`` of the same dtype."""
        weight, quantizer = (self.weight, self.weight_scale, self.bias), self.input_quantizer
        if quantizer is None:
            return cast(Tensor, quantized_linear(x, *weight, None, None, None))
        given = (quantizer.scale, quantizer.pre_quant_scale, quantizer.mean)
        # The last argument has a default, which serves static scales.
        dynamic = (True,) if quantizer.scale is None else ()
        return cast(Tensor, quantized_linear(x, *weight, *given, *dynamic))


class QuantizedConv2d(nn.Module):
    """Convolution with an 8-bit weight and an 8-bit input.

    Args:
        convolution: the layer in high precision; see ``is_quantizable``.
        spec: its name and format.
    """

    def __init__(self, convolution: nn.Conv2d, spec: LinearSpec) -> None:
        super().__init__()
        self.format = spec.format
        outputs, inputs, *kernel = convolution.weight.shape
        self.kernel, self.stride = kernel, [*convolution.stride]
        self.padding = [int(size) for size in convolution.padding]
        columns = kernel[0] * kernel[1] * inputs
        self.weight = _empty(outputs, columns, dtype=DTYPES[spec.format.weights])
        self.weight_scale = _empty(outputs)
        bias = convolution.bias
        self.bias = None if bias is None else _empty(*bias.shape, dtype=bias.dtype)
        self.input_quantizer = InputQuantizer(inputs, spec.format)

    def forward(self, x: Tensor) -> Tensor:
        """Convolves ``[N, C, H, W]``; the result has the dtype of ``x``."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return cast(
            Tensor,
            quantized_conv2d(
                x, self.weight, self.weight_scale, bias, self.input_quantizer.scale,
                self.kernel, self.stride, self.padding,
            ),
        )  # fmt: skip


class TokenQuantizer(RingStorage):
    """Fake quantization of queries, keys or values with a scale per token and head.

    Args:
        attention: sizes of the attention.
        fmt: 8-bit format.
        center: True if a mean is subtracted.
    """

    def __init__(self, attention: Attention, fmt: str, center: bool = False) -> None:
        super().__init__()
        self._dtype = dtype_name(DTYPES[fmt])
        self.mean = _empty(attention.heads, attention.head_dim) if center else None

    def forward(self, x: Tensor) -> Tensor:
        """Quantizes and dequantizes ``x``; a subtracted mean is not added back."""
        values = x if self.mean is None else prepared(x, None, self.mean)
        return cast(Tensor, fake_quantize(values, self._dtype)).to(x.dtype)


class KvQuantizer(RingStorage):
    """Quantization of the keys or values of a ring, which stores them in 8 bits; static scales.

    Args:
        attention: sizes of the attention.
        fmt: 8-bit format.
        center: True if a mean is subtracted.
        operand: as for ``quantize_kv``.
    """

    def __init__(self, attention: Attention, fmt: str, center: bool, operand: str) -> None:
        super().__init__()
        self.format = fmt
        self.dtype, self._operand = dtype_name(DTYPES[fmt]), operand
        self.scale = _empty(attention.heads)
        self.mean = _empty(attention.heads, attention.head_dim) if center else None

    def forward(self, x: Tensor) -> Tensor:
        """Quantizes keys or values."""
        operand = (self._operand,) if self._operand else ()
        return cast(Tensor, quantize_kv(x, self.scale, self.mean, self.dtype, *operand))

    def read(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Dequantizes stored values; a subtracted mean is not added back."""
        return cast(Tensor, dequantize_kv(stored, self.scale, dtype_name(dtype)))

    def state(self, spec: TensorSpec, name: str) -> TensorSpec:
        """Returns the ring's state in 8 bits; ``name`` is ``<group>.<this module's name>``."""
        mean = None if self.mean is None else f"{name}.mean"
        return replace(spec, dtype=self.dtype, rounding=Rounding(f"{name}.scale", mean))


def quantized_modules(
    part: Part, network: nn.Module, formats: Quantization
) -> dict[str, dict[str, nn.Module]]:
    """Returns the replacements of a network's modules: by quantized layer, then by module name.

    Args:
        part: part of the model.
        network: its network, which stays unchanged.
        formats: formats of its layers.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, a centered linear layer has no bias.
    """
    made: dict[str, dict[str, nn.Module]] = {}
    quantizers: dict[str, InputQuantizer] = {}
    for name, spec in linears_of(formats).items():
        linear = network.get_submodule(name)
        if is_quantizable(linear):
            made[name] = {name: QuantizedConv2d(linear, spec)}
            continue
        assert isinstance(linear, nn.Linear)
        module = QuantizedLinear(linear, spec, quantizers.get(spec.owner or ""))
        if spec.owner is not None and module.input_quantizer is not None:
            quantizers[spec.owner] = module.input_quantizer
        made[name] = {name: module}
    for name, fmt in formats.attention.items():
        if fmt != AttentionFormat():
            made[name] = _ring_modules(name, part.attentions[name], fmt)
    return made


def _ring_modules(name: str, attention: Attention, fmt: AttentionFormat) -> dict[str, nn.Module]:
    made: dict[str, nn.Module] = {}
    if fmt.computes:
        made[f"{name}.ring.{QUERIES}"] = TokenQuantizer(attention, fmt.queries)
    for operand, kind in ((KEYS, fmt.keys), (VALUES, fmt.values)):
        if kind == HIGH:
            continue
        center = fmt.center and operand == KEYS
        if fmt.scale != STATIC:  # No engine has per-token scales of rings: PyTorch only.
            made[f"{name}.ring.{operand}"] = TokenQuantizer(attention, kind, center)
            continue
        of_matmul = operand if fmt.computes else ""
        made[f"{name}.ring.{operand}"] = KvQuantizer(attention, kind, center, of_matmul)
    return made


def quantized_components(
    part: Part, formats: Quantization, network: nn.Module
) -> dict[str, Component]:
    """Replaces a network's quantized layers in place; returns its components."""
    for modules in quantized_modules(part, network, formats).values():
        for name, module in modules.items():
            network.set_submodule(name, module)
    return components_of(part, network)


def components_of(part: Part, network: nn.Module) -> dict[str, Component]:
    """Returns a part's components, with 8-bit states for the rings that the network quantizes."""
    states = _states(part, network)
    return {
        name: replace(made, signature=_with_states(made.signature, states))
        for name, made in part.components(network).items()
    }


def _states(part: Part, network: nn.Module) -> Mapping[str, tuple[str, KvQuantizer]]:
    """Returns the quantizer of each 8-bit state and the prefix of its weights, by state name."""
    found = {}
    for name, attention in part.attentions.items():
        for state, operand in ((attention.keys, KEYS), (attention.values, VALUES)):
            place = f"{name}.ring.{operand}"
            module = network.get_submodule(place)
            if isinstance(module, KvQuantizer):
                found[state] = f"{part.group}.{place}", module
    return found


def _with_states(signature: Signature, states: Mapping[str, tuple[str, KvQuantizer]]) -> Signature:
    def stored(spec: TensorSpec) -> TensorSpec:
        if spec.name not in states:
            return spec
        name, quantizer = states[spec.name]
        return quantizer.state(spec, name)

    return replace(signature, tensors=tuple(map(stored, signature)))


def _empty(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), requires_grad=False)
