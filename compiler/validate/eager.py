"""Reference engines that run components in PyTorch eager."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from vidc.compiler.quantize.modules import components_of
from vidc.exporters.component import Component
from vidc.exporters.families.family import Family
from vidc.exporters.part import Part
from vidc.plugins.signature import Signature
from vidc.runtime.states import Buffers, States, argument


class EagerEngine:
    """Engine that runs a component's module in PyTorch."""

    def __init__(self, component: Component) -> None:
        self.module = component.module
        """Module to run; it shares parameters with the network's other components."""
        writes = frozenset(s.name for s in component.signature.states if s.writes)
        self.signature: Signature = component.signature.with_in_place(writes)

    @torch.no_grad()
    def run(self, buffers: Buffers, states: States) -> None:
        """Runs the module on these buffers."""
        arguments = (argument(spec, buffers, states) for spec in self.signature.arguments)
        results = self.module(*arguments)
        for spec, result in zip(self.signature.outputs, results, strict=True):
            buffers[spec.name].copy_(result)

    def weight(self, name: str) -> Tensor:
        """Returns a weight of the module."""
        tensor: Tensor = self.module.state_dict()[name]
        return tensor


def part_engines(part: Part, network: nn.Module) -> dict[str, EagerEngine]:
    """Returns engines of a part's components, for the modules that its network has now."""
    return {name: EagerEngine(made) for name, made in components_of(part, network).items()}


def quantized_network(engines: Mapping[str, EagerEngine], model: Family) -> nn.Module:
    """Returns the quantized group's network from the engines of its components."""
    group = model.quantized_group
    name = next(name for name in engines if model.components.get(name) == group)
    return engines[name].module.get_submodule(group)
