"""The reference: a model's components run by PyTorch eager, and their results in a scenario."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from vidc.compiler.config.stream import stream_spec
from vidc.compiler.validate.eager import EagerEngine, part_engines
from vidc.compiler.validate.golden import Record, make_inputs, record, with_prompts
from vidc.compiler.validate.play import Inputs, Played, play_rollout
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.families.family import Family
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.runtime.engines import Engine


def eager_engines(
    config: Family,
    weights: Mapping[str, Path],
    precisions: Mapping[str, str],
    device: torch.device,
) -> dict[str, EagerEngine]:
    """Returns every component of a model, run by PyTorch at these precisions.

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
        network = with_weights(config.parts[group].network(precisions[group]), tensors)
        engines |= part_engines(config.parts[group], network)
    return engines


def play_in_float32(
    config: Family,
    weights: Mapping[str, Path],
    tokenizer: Path | None,
    scenario: Scenario,
    prompts: Sequence[str],
    device: torch.device,
) -> tuple[Inputs, Record]:
    """Returns a scenario's inputs and PyTorch's record of it in float32, on ``device``.

    Args:
        config: of the model.
        weights: the file of each weights group.
        tokenizer: of the model's text encoder, None where it has none.
        scenario: what is played.
        prompts: texts before and after its switch, for a model with a text encoder.
        device: where it is played.
    """
    stream = stream_spec(config)
    engines = eager_engines(config, weights, dict.fromkeys(weights, "fp32"), device)
    inputs = make_inputs(scenario, stream).to(device)
    if tokenizer is not None:
        inputs = with_prompts(inputs, stream, engines[config.text_component], tokenizer, prompts)
    return inputs, record(scenario, inputs, stream, engines)


def play_eager(
    config: Family,
    engines: Mapping[str, Engine],
    scenario: Scenario,
    inputs: Inputs,
    reference: Record,
) -> tuple[Record, Played | None]:
    """Plays a scenario call by call from the reference's flows, and its rollout where it has one.

    Args:
        config: of the model.
        engines: of all its components, which are PyTorch's.
        scenario: what is played.
        inputs: of it, on the engines' device.
        reference: PyTorch's record in float32.
    """
    stream = stream_spec(config)
    eager = record(scenario, inputs, stream, engines, forced_by=reference)
    rollout = play_rollout(scenario, inputs, stream, engines) if scenario.rollout else None
    return eager, rollout
