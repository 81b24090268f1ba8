"""Stage ``golden``: what PyTorch eager makes of the bundle's weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from vidc.compiler.config.stream import stream_spec
from vidc.compiler.store.stage import Workspace
from vidc.compiler.validate.eager import EagerEngine
from vidc.compiler.validate.golden import Golden, Record, make_inputs, record, with_prompts
from vidc.compiler.validate.play import Inputs, Played, play_rollout
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.config import ModelConfig
from vidc.exporters.models import PRECISIONS, components, meta_network, with_weights
from vidc.plugins.names import TOKENIZER, weights_path
from vidc.runtime.allocator import growing_segments
from vidc.runtime.engines import Engine
from vidc.runtime.faults import gpu_faults


def run(
    workspace: Workspace,
    config: ModelConfig,
    precisions: Mapping[str, str],
    scenario: Scenario,
    prompts: Sequence[str],
    device_type: str,
) -> None:
    """Writes ``golden/``: eager in float32 and, where they differ, in these precisions.

    Args:
        workspace: where to, and the weights.
        config: of the model.
        precisions: of its weights groups.
        scenario: what is played.
        prompts: texts before and after its switch, for a model with a text encoder.
        device_type: where, ``cpu`` or ``cuda``; float32 is float32 there, not TF32.

    Raises:
        UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
    """
    weights = {
        group: workspace.inputs[f"load:{group}"] / weights_path(group) for group in precisions
    }
    tokenizer = None
    if "text_encoder" in precisions:
        tokenizer = workspace.inputs["load:text_encoder"] / TOKENIZER
    device, eager, rollout = torch.device(device_type), None, None
    # One function a precision: its engines are gone before the next ones are made.
    exact = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
    with exact, growing_segments(), gpu_faults(device):
        inputs, reference = _in_float32(config, weights, tokenizer, scenario, prompts, device)
        if set(precisions.values()) != {"fp32"}:
            engines = eager_engines(config, weights, precisions, device)
            eager, rollout = play_eager(config, engines, scenario, inputs, reference)
    Golden(scenario, inputs, reference, eager, rollout).save(workspace.output)


def eager_engines(
    config: ModelConfig,
    weights: Mapping[str, Path],
    precisions: Mapping[str, str],
    device: torch.device,
) -> dict[str, EagerEngine]:
    """Every component of a model, run by PyTorch at these precisions.

    Args:
        config: of the model.
        weights: the file of each weights group.
        precisions: of each weights group.
        device: where they run.
    """
    engines: dict[str, EagerEngine] = {}
    for group, path in weights.items():
        dtype = PRECISIONS[precisions[group]]
        loaded = load_file(path, device=str(device))
        tensors = {name: tensor.to(dtype) for name, tensor in loaded.items()}
        network = with_weights(meta_network(config, group, precisions[group]), tensors)
        made = components(config, group, network, precisions[group])
        engines |= {name: EagerEngine(component) for name, component in made.items()}
    return engines


def _in_float32(
    config: ModelConfig,
    weights: Mapping[str, Path],
    tokenizer: Path | None,
    scenario: Scenario,
    prompts: Sequence[str],
    device: torch.device,
) -> tuple[Inputs, Record]:
    stream = stream_spec(config)
    engines = eager_engines(config, weights, dict.fromkeys(weights, "fp32"), device)
    inputs = make_inputs(scenario, stream).to(device)
    if tokenizer is not None:
        inputs = with_prompts(inputs, stream, engines["text_encoder"], tokenizer, prompts)
    return inputs, record(scenario, inputs, stream, engines)


def play_eager(
    config: ModelConfig,
    engines: Mapping[str, Engine],
    scenario: Scenario,
    inputs: Inputs,
    reference: Record,
) -> tuple[Record, Played | None]:
    """What engines make of a scenario: call by call from the reference's flows, and its rollout.

    Args:
        config: of the model.
        engines: of all its components, which are PyTorch's.
        scenario: what is played.
        inputs: of it, on the engines' device.
        reference: PyTorch's in float32.
    """
    stream = stream_spec(config)
    eager = record(scenario, inputs, stream, engines, forced_by=reference)
    rollout = play_rollout(scenario, inputs, stream, engines) if scenario.rollout else None
    return eager, rollout
