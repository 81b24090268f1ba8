"""Largest activations of a network, to decide whether float16 is wide enough."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vidc.plugins.errors import GateError

LIMIT = torch.finfo(torch.float16).max / 4
"""Limit of an activation in float32: a quarter of float16's maximum, as margin for other inputs."""


@dataclass(frozen=True)
class Activation:
    """Largest absolute output of a network's layers, and the layer."""

    layer: str
    value: float

    def __str__(self) -> str:
        return f"{self.value:.4g} in {self.layer}, fp16 accepts {LIMIT:.0f}"


class Headroom:
    """Largest absolute output of each layer, while networks run in float32.

    It sees only the results of layers without children: neither residual sums nor the transforms
    of Winograd's algorithm. The margin of ``LIMIT`` is for these too.

    Args:
        networks: modules of one weights group, which may share layers.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self._found: dict[str, Tensor] = {}
        layers = {
            layer: name
            for network in networks
            for name, layer in network.named_modules()
            if not list(layer.children())
        }
        for layer, name in layers.items():
            layer.register_forward_hook(self._watch(name))

    def _watch(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def look(_layer: nn.Module, _given: object, output: Tensor) -> None:
            largest = output.abs().amax()
            known = self._found.get(name)
            self._found[name] = largest if known is None else torch.maximum(known, largest)

        return look

    def largest(self) -> Activation:
        """Returns the largest output; before the first call, 0 with an empty layer name."""
        values = {name: value.item() for name, value in self._found.items()}
        # NaN is the largest of all.
        layer = max(values, key=lambda name: (math.isnan(values[name]), values[name]), default="")
        return Activation(layer, values.get(layer, 0.0))

    def require(self, group: str) -> Activation:
        """Returns the largest output; refuses one above ``LIMIT``.

        Args:
            group: the weights group of the networks.

        Raises:
            GateError: ``VIDC-BUILD-HEADROOM``.
        """
        found = self.largest()
        if not found.value <= LIMIT:  # NaN included.
            raise GateError(
                "VIDC-BUILD-HEADROOM",
                f"{found.layer} of {group} reaches {found.value:.0f} in float32; in fp16 at most "
                f"{LIMIT:.0f} is accepted, a quarter of its range",
                f"pass --set precision.{group}=bf16, or fp32 on a GPU without bf16",
            )
        return found
