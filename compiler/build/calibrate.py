"""Calibrates a transformer: loads what a build loads, then runs one rollout after another."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vidc.compiler.build.calibration_prompts import Prompts, pairs
from vidc.compiler.build.calibration_rollouts import Rollouts, scenario
from vidc.compiler.build.calibration_state import State
from vidc.compiler.build.golden_run import eager_engines
from vidc.compiler.build.load_run import read_source
from vidc.compiler.build.load_stage import load_stage
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import slot
from vidc.compiler.config.gpu import absent
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.stream import stream_spec
from vidc.compiler.quantize import document
from vidc.compiler.quantize.artifact import model_tables, write_calibration
from vidc.compiler.quantize.groups import groups
from vidc.compiler.quantize.ranges import finished, merged
from vidc.compiler.store.digest import sha256_json
from vidc.compiler.store.disk import stage_errors
from vidc.compiler.store.publish import OTHER_OUTPUT, Kind, exclusive, replacing
from vidc.compiler.store.run import Progress, run
from vidc.compiler.store.store import Store
from vidc.compiler.store.versions import versions
from vidc.plugins.errors import UnavailableError
from vidc.plugins.names import TOKENIZER, weights_path
from vidc.runtime.faults import gpu_faults
from vidc.runtime.stream import StreamSpec
from vidc.runtime.strict import plain
from vidc.runtime.text import TextEncoder

TRANSFORMER = "transformer"
TEXT_ENCODER = "text_encoder"
CALIBRATION = Kind(document.DOCUMENT, lambda _: [document.TENSORS])


@dataclass(frozen=True)
class Calibrated:
    """A finished calibration: its folder and what its document says."""

    output: Path
    document: document.Document


def stage_count(prompts: Prompts) -> int:
    """How many steps of progress a calibration makes."""
    return len(prompts) + len(loaded_groups(prompts))


def calibrate(
    settings: Settings,
    sources: Sources,
    prompts: Prompts,
    seed: int,
    output: Path,
    cache: Path,
    progress: Progress,
    *,
    analyzed: bool = False,
) -> Calibrated:
    """Writes the calibration of a model's transformer to ``output``.

    An interrupted run goes on at the first prompt that it did not finish, and gives the same bytes
    as one that was not interrupted.

    Args:
        settings: of the model, its precision and the target it runs on here.
        sources: where its weights come from.
        prompts: at least one; each is followed by a rollout that switches to the next.
        seed: of the noise.
        output: a folder that is new or holds an older calibration.
        cache: where results of stages are kept.
        progress: is told of each stage and prompt.
        analyzed: whether an analysis follows: if that is interrupted, the next run has the ranges
            at once, from a file that is left until then.

    Raises:
        UsageError: ``VIDC-BUILD-OUTPUT``.
        UnavailableError: ``VIDC-CALIBRATE-GPU``; ``VIDC-ENV-BUILD``, ModelOpt is not installed;
            ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
        VidcError: what the stages and the store raise.
    """
    CALIBRATION.refuse_occupied(output)
    output = output.resolve()
    tools = versions("nvidia-modelopt", extra="calibrate") | versions("torch", "vidc")
    _require_device(settings)
    device = torch.device(settings.target.device_type)
    stages = [load_stage(settings, sources, group) for group in loaded_groups(prompts)]
    with Store(cache) as store:
        loaded = run(stages, store, slot(settings), progress)
        folders = {group: loaded[f"load:{group}"].path for group in loaded_groups(prompts)}
        source = read_source(folders[TRANSFORMER])
        stream = stream_spec(settings.model)
        played = scenario(stream)
        unsized = document.Document(
            schema=document.SCHEMA,
            weights=source["digest"],
            source=source,
            model=model_tables(settings.model),
            precision=settings.precision[TRANSFORMER],
            device=device.type,
            prompts=document.PromptsNote(prompts.kind, len(prompts), prompts.sha256, prompts.texts),
            seed=seed,
            recipe=document.Rollouts("max", played.blocks, played.switch_after),
            groups=groups(stream),
            versions=tools,
            tensors=document.FileNote(0, ""),
        )
        with exclusive(store, output, progress.note), gpu_faults(device):
            ranges = _ranges(settings, prompts, unsized, folders, output, progress)
            with replacing(output, "calibrate") as staging:
                write_calibration(staging, unsized, finished(ranges))
            if not analyzed:
                unfinished(output).unlink(missing_ok=True)
    return Calibrated(output, unsized)


def loaded_groups(prompts: Prompts) -> tuple[str, ...]:
    """The weights that a calibration needs."""
    return (TRANSFORMER, *([TEXT_ENCODER] if prompts.texts else []))


def _require_device(settings: Settings) -> None:
    target = settings.target
    if target.is_gpu and (reason := absent(target)) is not None:
        raise UnavailableError(
            "VIDC-CALIBRATE-GPU",
            f"this machine cannot calibrate on {target.name}: {reason}",
            "pass --gpu cpu: the ranges hold for every target",
        )


def unfinished(output: Path) -> Path:
    """The file that an interrupted run leaves beside its folder, an absolute path."""
    return output.with_name(f".{output.name}.unfinished.safetensors")


def _ranges(
    settings: Settings,
    prompts: Prompts,
    note: document.Document,
    folders: Mapping[str, Path],
    output: Path,
    progress: Progress,
) -> Mapping[str, Tensor]:
    """The ranges of all prompts, from where an earlier run stopped."""
    device, path = torch.device(note.device), unfinished(output)
    key = sha256_json({**plain(note), "machine": machine(device)})
    state = State.load(path, key)
    for index in range(state.done):
        progress.finished(_name(index, prompts), True, 0.0)
    if state.done == len(prompts):
        return state.ranges
    stream = stream_spec(settings.model)
    embeddings = pairs(prompt_embeddings(settings, prompts, stream, folders, device))
    weights = {TRANSFORMER: folders[TRANSFORMER] / weights_path(TRANSFORMER)}
    engines = eager_engines(settings.model, weights, settings.precision, device)
    rollouts = Rollouts(stream, engines, device, note.seed)
    if state.done == 0:
        state = State(0, rollouts.weights())
    with stage_errors("calibrate", output.parent, output.parent, None, OTHER_OUTPUT):
        output.parent.mkdir(parents=True, exist_ok=True)
    for index in range(state.done, len(prompts)):
        name, started = _name(index, prompts), time.perf_counter()
        progress.started(name)
        found = rollouts.ranges(index, embeddings[index])
        state = State(index + 1, merged(state.ranges, found))
        with stage_errors(name, output.parent, output.parent, None, OTHER_OUTPUT):
            state.save(path, key)
        progress.finished(name, False, time.perf_counter() - started)
    return state.ranges


def prompt_embeddings(
    settings: Settings,
    prompts: Prompts,
    stream: StreamSpec,
    folders: Mapping[str, Path],
    device: torch.device,
) -> Tensor:
    """Of all prompts, ``[N, L, E]`` on the CPU; the text encoder is gone when this returns."""
    if not prompts.texts:
        return prompts.embedded(None)
    weights = {TEXT_ENCODER: folders[TEXT_ENCODER] / weights_path(TEXT_ENCODER)}
    engines = eager_engines(settings.model, weights, settings.precision, device)
    tokenizer = folders[TEXT_ENCODER] / TOKENIZER
    return prompts.embedded(TextEncoder(engines[TEXT_ENCODER], tokenizer, device))


def _name(index: int, prompts: Prompts) -> str:
    return f"prompt {index + 1}/{len(prompts)}"


def machine(device: torch.device) -> str:
    """What may round differently: its ranges are not mixed with another's."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()}"
