"""How much of what enters layers in 8 bits lies beyond the ranges of a calibration."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from vidc.compiler.quantize.arithmetic import LARGEST
from vidc.plugins.errors import GateError

Limits = Mapping[str, float]
"""By form, the relative L2 of what may be cut off."""

OF_LINEARS: Limits = MappingProxyType({"fp8": 0.03, "int8": 0.1})
"""In FP8 about what is rounded off anyway: its steps grow with the values, so that a narrow range
gains nothing. In INT8 more, for a narrower range is a finer one."""
OF_RINGS: Limits = MappingProxyType({"fp8": 0.1, "int8": 0.1})
"""Of keys and values: the ranges of six prompts cut off 6 % in the demo's first layer."""


class Clipping:
    """Watches what is rounded by static scales, component by component."""

    def __init__(self) -> None:
        self.component = ""
        """Whose call it is."""
        self._worst: dict[tuple[str, str], Tensor] = {}
        self._limits: dict[tuple[str, str], float] = {}

    def see(self, layer: str, limits: Limits, values: Tensor, scale: Tensor, form: str) -> None:
        """Values of any shape that a layer rounds by a scale that broadcasts to it."""
        beyond = (values.abs() - scale * LARGEST[form]).clamp(min=0)
        # Zeros have nothing to cut off.
        error = beyond.norm() / values.norm().clamp(min=torch.finfo(torch.float32).tiny)
        key = self.component, layer
        self._limits[key] = limits[form]
        self._worst[key] = torch.maximum(self._worst.get(key, torch.zeros_like(error)), error)

    def worst(self) -> dict[tuple[str, str], float]:
        """By component and layer, the largest relative L2 that a call cut off, largest first."""
        found = {key: float(value) for key, value in self._worst.items()}
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def require_kept(self) -> None:
        """Refuses ranges that cut off more of what a layer is given than its limit.

        Raises:
            GateError: ``VIDC-CALIBRATION-RANGE`` with the component and the layer.
        """
        # A NaN is in no order.
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
