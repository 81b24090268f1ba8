"""Reference: a model's components in PyTorch eager, and their results in a scenario."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from vidc.compiler.config.program import program_spec
from vidc.compiler.quantize.modules import components_of
from vidc.compiler.validate.golden import Record, make_inputs, record, with_prompts
from vidc.compiler.validate.headroom import Activation, Headroom
from vidc.compiler.validate.play import Inputs, Played, Player
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.component import Component
from vidc.exporters.families.family import Family
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.exporters.part import Part
from vidc.plugins.signature import Signature
from vidc.runtime.engines import Engine
from vidc.runtime.program import program
from vidc.runtime.programs.base import Resources
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


def eager_engines(
    config: Family,
    weights: Mapping[str, Path],
    precisions: Mapping[str, str],
    device: torch.device,
) -> dict[str, EagerEngine]:
    """Returns engines that run a model's components in PyTorch, in these precisions.

    Args:
        config: the model.
        weights: file of each weights group; groups without a file are left out.
        precisions: high precision of each weights group.
        device: device of the engines.
    """
    engines: dict[str, EagerEngine] = {}
    for group, path in weights.items():
        dtype = PRECISIONS[precisions[group]]
        loaded = load_file(path, device=str(device))
        tensors = {name: tensor.to(dtype) for name, tensor in loaded.items()}
        network = with_weights(config.parts[group].network(precisions[group]), tensors)
        engines |= part_engines(config.parts[group], network)
    return engines


def player(config: Family, engines: Mapping[str, Engine], device: torch.device) -> Player:
    """Returns a player of a model's program over some of its components."""
    resources = Resources(program_spec(config), engines, device)
    return Player(program(config.program), resources)


def play_in_float32(
    config: Family,
    weights: Mapping[str, Path],
    tokenizer: Path | None,
    scenario: Scenario,
    prompts: Sequence[str],
    device: torch.device,
    narrow: Sequence[str],
) -> tuple[Inputs, Record, dict[str, Activation]]:
    """Plays a scenario with PyTorch in float32.

    Args:
        config: the model.
        weights: file of each weights group.
        tokenizer: file of the text encoder's tokenizer; None for a model without text encoder.
        scenario: the scenario.
        prompts: texts before and after the switch, for a model with a text encoder.
        device: device of the engines.
        narrow: weights groups whose activations must have headroom in float16.

    Returns:
        The inputs on ``device``, the record, and the largest activation of each group in
        ``narrow``.

    Raises:
        GateError: ``VIDC-BUILD-HEADROOM``, an activation is too large for float16.
    """
    engines = eager_engines(config, weights, dict.fromkeys(weights, "fp32"), device)
    headroom = {
        group: Headroom(e.module for n, e in engines.items() if config.components[n] == group)
        for group in narrow
    }
    eager = player(config, engines, device)
    inputs = make_inputs(scenario, eager.resources.spec).to(device)
    if tokenizer is not None:
        encoder = engines[config.text_component]
        inputs = with_prompts(inputs, eager.resources.spec, encoder, tokenizer, prompts)
    played = record(eager, scenario, inputs)
    return inputs, played, {group: found.require(group) for group, found in headroom.items()}


def play_eager(
    config: Family,
    engines: Mapping[str, Engine],
    scenario: Scenario,
    inputs: Inputs,
    reference: Record,
) -> tuple[Record, Played | None]:
    """Plays a scenario forced by the reference, as in ``record``, and its free rollout if any.

    Args:
        config: the model.
        engines: PyTorch's engines of all components.
        scenario: the scenario.
        inputs: its inputs, on the engines' device.
        reference: PyTorch's record in float32.

    Returns:
        The forced record, and the free rollout; None for a scenario without one.
    """
    eager = player(config, engines, inputs.noise.device)
    forced = record(eager, scenario, inputs, forced_by=reference)
    return forced, eager.rollout(scenario, inputs) if scenario.rollout else None
