"""Components run by PyTorch itself, behind the interface of an engine: the reference."""

import torch
from torch import Tensor

from vidc.exporters.component import Component
from vidc.plugins.signature import Signature
from vidc.runtime.states import Buffers, States, argument


class EagerEngine:
    """A component's own module as an engine."""

    def __init__(self, component: Component) -> None:
        self.module = component.module
        """What it runs, which shares its parameters with the network's other components."""
        writes = frozenset(s.name for s in component.signature.states if s.writes)
        self.signature: Signature = component.signature.with_in_place(writes)

    @torch.no_grad()
    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the module over these buffers."""
        arguments = (argument(spec, buffers, states) for spec in self.signature.arguments)
        results = self.module(*arguments)
        for spec, result in zip(self.signature.outputs, results, strict=True):
            buffers[spec.name].copy_(result)

    def weight(self, name: str) -> Tensor:
        """One of the module's."""
        tensor: Tensor = self.module.state_dict()[name]
        return tensor
