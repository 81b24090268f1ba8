"""Distance of a network's activations from the end of float16's range."""

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

from vidc.plugins.errors import GateError

LARGEST = torch.finfo(torch.float16).max / 4
"""Activations of a float16 network may be a quarter of float16's range: other inputs go further."""


class Headroom:
    """Largest absolute output of each layer, while the networks run in float32.

    Args:
        networks: they share no layers.
    """

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        self._found: dict[str, Tensor] = {}
        for network in networks:
            for name, layer in network.named_modules():
                if not any(True for _ in layer.children()):
                    layer.register_forward_hook(self._watch(name))

    def _watch(self, name: str) -> Callable[[nn.Module, object, Tensor], None]:
        def look(_layer: nn.Module, _given: object, output: Tensor) -> None:
            largest = output.abs().amax()
            known = self._found.get(name)
            self._found[name] = largest if known is None else torch.maximum(known, largest)

        return look

    def largest(self) -> tuple[str, float]:
        """Returns the layer with the largest output, and that value; ``("", 0.0)`` before any."""
        values = {name: value.item() for name, value in self._found.items()}
        # NaN is the largest of all.
        layer = max(values, key=lambda name: (math.isnan(values[name]), values[name]), default="")
        return layer, values.get(layer, 0.0)

    def require(self, group: str) -> None:
        """Refuses float16 where it is too narrow.

        Args:
            group: the weights group of the networks.

        Raises:
            GateError: ``VIDC-BUILD-HEADROOM``.
        """
        layer, value = self.largest()
        if not value <= LARGEST:  # NaN included.
            raise GateError(
                "VIDC-BUILD-HEADROOM",
                f"{layer} of {group} reaches {value:.0f} in float32; in fp16 at most "
                f"{LARGEST:.0f} is accepted, a quarter of its range",
                f"pass --set precision.{group}=bf16, or fp32 on a GPU without bf16",
            )
