"""Stage ``calibrate:<group>``: records the activation ranges that static scales come from."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from vidc.compiler.build.calibration_prompts import Prompts, default_prompts
from vidc.compiler.build.device_memory import golden_bytes
from vidc.compiler.build.load import SOURCE_NAME, labeled, loaded_input
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.program import model_modules, program_spec
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.schema import CALIBRATION_PROMPTS
from vidc.compiler.config.targets import gpu_unavailable
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.digest import Json
from vidc.compiler.store.sources import versions
from vidc.compiler.store.stage import Input, Key, Stage, Workspace
from vidc.exporters.families.family import Family
from vidc.exporters.families.flags import flag_of
from vidc.plugins.errors import UsageError

if TYPE_CHECKING:
    from vidc.compiler.build.calibration_recording import Recording

UNFINISHED = "calibrate"
"""Name of the folder of unfinished recordings in ``Workspace.kept``."""


@dataclass(frozen=True)
class Calibrate(Stage):
    """Writes both files of a calibration: its document and its tensors.

    One stage records all prompts, so that the weights are loaded once. An interrupted recording
    resumes at the first unfinished prompt, from a file in ``Workspace.kept``.

    Attributes:
        model: model that is calibrated.
        source: recording to make, or folder of a finished calibration. None if another machine
            ran the stage: this stage then does not run, and its key omits the source.
    """

    model: Family
    source: "Recording | Path | None"

    @property
    def name(self) -> str:
        """``calibrate:<group>``."""
        return calibrate_name(self.model)

    @property
    def inputs(self) -> tuple[Input, ...]:
        """The weights that a recording runs, and ``source.json`` of the quantized group."""
        if self.source is None or isinstance(self.source, Path):
            return ()
        parts = (self.model.parts[group] for group in self.source.precisions)
        main = self.model.quantized_group
        return tuple(loaded_input(p, *([SOURCE_NAME] if p.group == main else [])) for p in parts)

    def key(self) -> Key:
        """Returns the key: files of a finished calibration, or all inputs of a recording."""
        from vidc.compiler.quantize.artifact import model_tables

        source, config = self.source, {"model": model_tables(self.model)}
        entries = (__name__, *model_modules(self.model))
        if source is None:
            return Key(entries, config)
        if isinstance(source, Path):
            files = labeled("calibration", [source / DOCUMENT, source / TENSORS])
            return Key(entries, config, files, partial(versions, "torch"))
        parts = [self.model.parts[group] for group in source.precisions]
        libraries = [library for part in parts for library in part.libraries]
        texts = ["ftfy"] if source.prompts.texts else []
        recorded: dict[str, Json] = {
            "sizes": {part.group: part.config.to_json() for part in parts},
            "precisions": dict(source.precisions),
            "prompts": {
                "kind": source.prompts.kind,
                "count": len(source.prompts),
                "sha256": source.prompts.sha256,
            },
            "seed": source.seed,
            "device": source.device_type,
        }
        return Key(
            entries,
            {**config, **recorded},
            tools=lambda: {**source.versions, **versions(*libraries, *texts)},
        )

    def run(self, workspace: Workspace) -> None:
        """Records the ranges, or copies them.

        Raises:
            GateError: ``VIDC-CALIBRATION-NONFINITE``, ``VIDC-CALIBRATION-ZERO``.
            UnavailableError: ``VIDC-GPU-MEMORY``, ``VIDC-GPU-LOST``.
        """
        import torch

        from vidc.compiler.build.calibration_recording import Recording
        from vidc.runtime.allocator import growing_segments
        from vidc.runtime.faults import gpu_faults

        source = self.source
        if isinstance(source, Path):
            for file in (DOCUMENT, TENSORS):
                (workspace.output / file).write_bytes((source / file).read_bytes())
            return
        assert isinstance(source, Recording)
        assert workspace.kept is not None
        folders = {group: workspace.inputs[f"load:{group}"] for group in source.precisions}
        with growing_segments(), gpu_faults(torch.device(source.device_type)):
            source.write(folders, workspace.output, workspace.kept / UNFINISHED, workspace.note)


def calibrate_name(model: Family) -> str:
    """Returns the name of the stage that calibrates a model."""
    return f"calibrate:{model.quantized_group}"


def calibrate_stage(settings: Settings, sources: Sources | None) -> Calibrate:
    """Returns a build's stage: it copies a given calibration or records the preset's prompts.

    Raises:
        VidcError: what ``build_prompts`` and ``record_stage`` raise.
    """
    if sources is None:
        return Calibrate(settings.model, None)
    if sources.calibration is not None:
        return Calibrate(settings.model, sources.calibration)
    return record_stage(settings, build_prompts(settings), 0, recording_device(settings))


def record_stage(settings: Settings, prompts: Prompts, seed: int, device_type: str) -> Calibrate:
    """Returns the stage that runs rollouts and records activation ranges.

    Args:
        settings: settings of the model; every group runs in its high precision.
        prompts: at least one.
        seed: seed of the noise.
        device_type: where the rollouts run, ``cpu`` or ``cuda``.

    Raises:
        UnavailableError: ``VIDC-ENV-BUILD``, ModelOpt is not installed.
    """
    from vidc.compiler.build.calibration_recording import Recording, loaded_groups

    precisions = {
        group: settings.precision[group] for group in loaded_groups(settings.model, prompts)
    }
    recorded_by = versions("nvidia-modelopt", extra="calibrate") | versions("torch", "vidc")
    source = Recording(settings.model, precisions, prompts, seed, device_type, recorded_by)
    needed = golden_bytes(settings) if device_type == "cuda" else 0
    return Calibrate(settings.model, source, device_bytes=needed)


def recording_device(settings: Settings) -> str:
    """Returns ``cuda`` if this machine has the target's GPU, else ``cpu``.

    Ranges recorded on a CPU are valid for the GPU.
    """
    here = settings.target.is_gpu and gpu_unavailable(settings.target) is None
    return "cuda" if here else "cpu"


def build_prompts(settings: Settings) -> Prompts:
    """Returns the prompts that a build without a calibration records on.

    Raises:
        UsageError: ``VIDC-CALIBRATION-NEEDED``, the model takes texts and has no text encoder;
            ``VIDC-CALIBRATE-PROMPTS``, the preset has no text among its prompts.
    """
    quantized, model = settings.quantization, settings.model
    assert quantized is not None
    if model.lacks_text_encoder:
        raise UsageError(
            "VIDC-CALIBRATION-NEEDED",
            f"recipe {quantized.recipe.name} takes ranges from a calibration: none is given, and "
            "without a text encoder there are no prompts to record one on",
            f"add {flag_of(str(model.text_group))} FOLDER, or make one with vidc calibrate and "
            "pass --calibration",
        )
    spec = program_spec(model)
    return default_prompts(spec, CALIBRATION_PROMPTS, model.texts, settings.calibrate.prompts)
