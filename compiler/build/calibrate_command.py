"""Calibration without a build: runs a build's calibration stages and writes their result."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.build.calibrate import calibrate_name, record_stage
from vidc.compiler.build.calibration_prompts import Prompts
from vidc.compiler.build.calibration_recording import loaded_groups
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import load_stage, slot
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.targets import gpu_unavailable
from vidc.compiler.quantize import document
from vidc.compiler.quantize.artifact import read_calibration
from vidc.compiler.store.publish import Kind, exclusive, replacing
from vidc.compiler.store.run import Progress, run
from vidc.compiler.store.stage import Stage
from vidc.compiler.store.store import Store
from vidc.plugins.errors import UnavailableError

CALIBRATION = Kind(document.DOCUMENT, lambda _: [document.TENSORS])


@dataclass(frozen=True)
class Calibrated:
    """A finished calibration: its folder and its document."""

    output: Path
    document: document.Document


def calibration_stages(
    settings: Settings, sources: Sources, prompts: Prompts, seed: int
) -> list[Stage]:
    """Returns the stages that ``calibrate`` runs; the last one records the ranges."""
    groups = loaded_groups(settings.model, prompts)
    recorded = record_stage(settings, prompts, seed, settings.target.device_type)
    return [*(load_stage(settings, sources, group) for group in groups), recorded]


def calibrate(
    settings: Settings,
    sources: Sources,
    prompts: Prompts,
    seed: int,
    output: Path,
    cache: Path,
    progress: Progress,
) -> Calibrated:
    """Writes the calibration of a model's quantized group to ``output``.

    An interrupted run resumes at the first unfinished prompt and writes the same bytes as an
    uninterrupted one.

    Args:
        settings: settings of the model, and the target, which this machine must have.
        sources: sources of the weights.
        prompts: at least one. The rollout of each begins with it and switches to the next one.
        seed: seed of the noise.
        output: a new folder, or one with an older calibration.
        cache: folder of the results of stages.
        progress: receives each stage and prompt.

    Raises:
        UsageError: ``VIDC-BUILD-OUTPUT``.
        UnavailableError: ``VIDC-CALIBRATE-GPU``, this machine does not have the target's GPU;
            ``VIDC-ENV-BUILD``, ModelOpt is not installed;
            ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
        VidcError: what the stages and the store raise.
    """
    CALIBRATION.refuse_occupied(output)
    output = output.resolve()
    _require_device(settings)
    graph = calibration_stages(settings, sources, prompts, seed)
    with Store(cache) as store:
        made = run(graph, store, slot(settings), progress)[calibrate_name(settings.model)]
        with exclusive(store, output, progress.note), replacing(output, "calibrate") as staging:
            for name in made.files:
                shutil.copyfile(made.path / name, staging / name)
    return Calibrated(output, read_calibration(output, settings.model).document)


def _require_device(settings: Settings) -> None:
    target = settings.target
    if target.is_gpu and (reason := gpu_unavailable(target)) is not None:
        raise UnavailableError(
            "VIDC-CALIBRATE-GPU",
            f"this machine cannot calibrate on {target.name}: {reason}",
            "pass --gpu cpu: the ranges hold for every target",
        )
