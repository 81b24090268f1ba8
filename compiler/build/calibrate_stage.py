"""The stage that gives the ranges of the transformer: recorded here, or given."""

from pathlib import Path

from vidc.compiler.build.calibration_prompts import Prompts, default_prompts
from vidc.compiler.build.calibration_recording import Recording, loaded_groups
from vidc.compiler.build.device_memory import golden_bytes
from vidc.compiler.build.load_run import SOURCE_NAME
from vidc.compiler.build.load_stage import weights_files
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.work import LIBRARIES, Work, group_sizes, labeled, runner
from vidc.compiler.config.gpu import absent
from vidc.compiler.config.quantization import TRANSFORMER
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.schema import CALIBRATION_PROMPTS
from vidc.compiler.config.stream import stream_spec
from vidc.compiler.quantize.artifact import model_tables
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.stage import Input, Stage
from vidc.compiler.store.versions import versions
from vidc.plugins.errors import UsageError

CALIBRATE = f"calibrate:{TRANSFORMER}"


def is_calibrated(settings: Settings) -> bool:
    """Returns True if the build's recipe takes ranges from a calibration."""
    return settings.quantization is not None and settings.quantization.calibrated


def calibrate_stage(settings: Settings, sources: Sources) -> Stage:
    """The calibration of a build: the one given, or one on the preset's prompts.

    Raises:
        UsageError: ``VIDC-CALIBRATION-NEEDED``, none is given and the model has no text encoder.
        VidcError: what ``record_stage`` and ``default_prompts`` raise.
    """
    if sources.calibration is not None:
        return _given_stage(settings, sources.calibration)
    return record_stage(settings, build_prompts(settings), 0, recording_device(settings))


def calibrate_work(settings: Settings) -> Work:
    """What the stage does, wherever its ranges come from."""
    return Work(("vidc.compiler.build.calibrate_run",), {"model": model_tables(settings.model)})


def recording_device(settings: Settings) -> str:
    """Returns ``cuda`` where the target's GPU is here; ranges hold for it from a ``cpu``, too."""
    here = settings.target.is_gpu and absent(settings.target) is None
    return "cuda" if here else "cpu"


def build_prompts(settings: Settings) -> Prompts:
    """The prompts that a build without a calibration records on.

    Raises:
        UsageError: ``VIDC-CALIBRATION-NEEDED``, the model has no text encoder;
            ``VIDC-CALIBRATE-PROMPTS``, the preset has no text among its prompts.
    """
    quantized = settings.quantization
    assert quantized is not None
    if settings.model.text_encoder is None:
        raise UsageError(
            "VIDC-CALIBRATION-NEEDED",
            f"recipe {quantized.recipe.name} takes ranges from a calibration: none is given, and "
            "without a text encoder there are no prompts to record one on",
            "add --text-encoder FOLDER, or make one with vidc calibrate and pass --calibration",
        )
    stream = stream_spec(settings.model)
    return default_prompts(stream, CALIBRATION_PROMPTS, True, settings.calibrate.prompts)


def record_stage(settings: Settings, prompts: Prompts, seed: int, device_type: str) -> Stage:
    """The stage that plays rollouts and records their ranges.

    Args:
        settings: of the model and its high precisions.
        prompts: at least one.
        seed: of the noise.
        device_type: where the rollouts run, ``cpu`` or ``cuda``.

    Raises:
        UnavailableError: ``VIDC-ENV-BUILD``, ModelOpt is not installed.
    """
    groups = loaded_groups(prompts)
    precisions = {group: settings.precision[group] for group in groups}
    recorded_by = versions("nvidia-modelopt", extra="calibrate") | versions("torch", "vidc")
    libraries = [library for group in groups for library in LIBRARIES[group]]
    work = calibrate_work(settings)
    recording = Recording(settings.model, precisions, prompts, seed, device_type, recorded_by)
    return Stage(
        name=CALIBRATE,
        run=runner("calibrate", source=recording),
        entries=work.entries,
        config={
            **work.config,
            "sizes": {group: group_sizes(settings, group) for group in groups},
            "precisions": precisions,
            "prompts": {"kind": prompts.kind, "count": len(prompts), "sha256": prompts.sha256},
            "seed": seed,
            "device": device_type,
        },
        inputs=tuple(Input(f"load:{group}", _loaded_files(group)) for group in groups),
        tools=recorded_by | versions(*libraries, *(["ftfy"] if prompts.texts else [])),
        device_bytes=golden_bytes(settings) if device_type == "cuda" else 0,
    )


def _loaded_files(group: str) -> tuple[str, ...]:
    source = (SOURCE_NAME,) if group == TRANSFORMER else ()
    return (*weights_files(group), *source)


def _given_stage(settings: Settings, folder: Path) -> Stage:
    """The stage that takes over the calibration in a folder."""
    work = calibrate_work(settings)
    return Stage(
        name=CALIBRATE,
        run=runner("calibrate", source=folder),
        entries=work.entries,
        config=work.config,
        files=labeled("calibration", [folder / DOCUMENT, folder / TENSORS]),
        tools=versions("torch"),
    )
