"""Clipping error of inputs that exceed the ranges of a calibration."""

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn

from vidc.compiler.quantize.arithmetic import LARGEST
from vidc.compiler.quantize.modules import KvQuantizer, QuantizedConv2d, QuantizedLinear
from vidc.plugins.errors import GateError
from vidc.plugins.ops.quantized_linear import prepared

Limits = Mapping[str, float]
"""Largest clipping error by format, as relative L2."""

OF_LINEARS: Limits = MappingProxyType({"fp8": 0.03, "int8": 0.1})
"""Limits of linear layers. FP8's limit is about its rounding error: its steps grow with the values,
so a narrower range rounds no better. INT8's is larger, because a narrower range has finer steps."""
OF_RINGS: Limits = MappingProxyType({"fp8": 0.1, "int8": 0.1})
"""Limits of keys and values. With ranges from six prompts, the demo's first layer clips 6 %."""


class Clipping:
    """Largest clipping errors of static scales, by component and layer."""

    def __init__(self) -> None:
        self.component = ""
        """Name of the running component."""
        self._worst: dict[tuple[str, str], Tensor] = {}
        self._limits: dict[tuple[str, str], float] = {}

    def enter(self, component: str, module: nn.Module, arguments: object) -> None:
        """Remembers the component that runs next; a forward pre-hook of its module."""
        self.component = component

    def watch(self, layer: str, module: nn.Module) -> None:
        """Records the errors of a module that quantizes with static scales."""
        if isinstance(module, QuantizedLinear | QuantizedConv2d):
            module.register_forward_pre_hook(partial(self._linear, layer))
        elif isinstance(module, KvQuantizer):
            module.register_forward_pre_hook(partial(self._ring, layer))

    def _linear(
        self, layer: str, module: QuantizedLinear | QuantizedConv2d, arguments: tuple[Tensor]
    ) -> None:
        quantizer = module.input_quantizer
        if quantizer is not None and quantizer.scale is not None:
            values = quantizer.prepared(*arguments)
            self.see(layer, OF_LINEARS, values, quantizer.scale, module.format.activations)

    def _ring(self, layer: str, module: KvQuantizer, arguments: tuple[Tensor]) -> None:
        values = prepared(*arguments, None, module.mean)
        self.see(layer, OF_RINGS, values, module.scale[:, None], module.format)

    def see(self, layer: str, limits: Limits, values: Tensor, scale: Tensor, fmt: str) -> None:
        """Records the error of values of any shape with a scale that broadcasts to them."""
        beyond = (values.abs() - scale * LARGEST[fmt]).clamp(min=0)
        # The clamp avoids 0/0.
        error = beyond.norm() / values.norm().clamp(min=torch.finfo(torch.float32).tiny)
        key = self.component, layer
        self._limits[key] = limits[fmt]
        self._worst[key] = torch.maximum(self._worst.get(key, torch.zeros_like(error)), error)

    def worst(self) -> dict[tuple[str, str], float]:
        """Returns the largest relative L2 of a call by component and layer, largest first."""
        found = {key: float(value) for key, value in self._worst.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def require_within_limits(self) -> None:
        """Rejects ranges that clip a layer's input by more than its limit.

        Raises:
            GateError: ``VIDC-CALIBRATION-RANGE`` with the component and the layer.
        """
        # The negation includes NaN.
        over = {k: error for k, error in self.worst().items() if not error <= self._limits[k]}
        if not over:
            return
        (component, layer), error = next(iter(over.items()))
        layers = len({name for _, name in over})
        raise GateError(
            "VIDC-CALIBRATION-RANGE",
            f"{component}: {error:.1%} of what enters {layer} (relative L2) is beyond its range, "
            f"{self._limits[component, layer]:.0%} may be; layers of which more is: {layers}",
            "calibrate on prompts like those that are run, and more: vidc calibrate --prompts FILE",
        )
