"""All stages of a build: the one place where settings and sources become stages."""

import os
from dataclasses import replace

from vidc.compiler.backends import backend
from vidc.compiler.backends.tensorrt.compatible import limits
from vidc.compiler.build.calibrate import Calibrate, calibrate_name
from vidc.compiler.build.calibration_prompts import Prompts, default_prompts
from vidc.compiler.build.compile import Compile
from vidc.compiler.build.device_memory import compile_bytes, golden_bytes
from vidc.compiler.build.export import Export
from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.build.golden_quantized import PlayQuantized
from vidc.compiler.build.kernel import CompileKernel
from vidc.compiler.build.load import Load
from vidc.compiler.build.package import Package
from vidc.compiler.build.quantize_weights import QuantizeWeights
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.schema import CALIBRATION_PROMPTS
from vidc.compiler.config.targets import gpu_unavailable
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.lowering import lowered_formats
from vidc.compiler.store.stage import Stage
from vidc.compiler.store.versions import versions
from vidc.compiler.validate.estimate import scenario
from vidc.exporters.families.flags import flag_of
from vidc.plugins.errors import UsageError

WORKERS = min(12, len(os.sched_getaffinity(0)))
"""Most stages that run at once, about one for each component.

Each uses about 1 GB and one thread."""


def stages(settings: Settings, sources: Sources | None) -> list[Stage]:
    """Returns the stages of a build before packaging, in topological order.

    Args:
        settings: what to build.
        sources: origin of the weights; None if another machine ran the portable stages. Their keys
            here then omit input files.

    Raises:
        UsageError: ``VIDC-BUILD-SOURCES``, ``VIDC-CALIBRATION-NEEDED``.
        UnavailableError: ``VIDC-RECIPE-LOWERING``, ``VIDC-TENSORRT-COMPATIBLE``.
    """
    groups = settings.model.components
    return [
        *(load_stage(settings, sources, group) for group in settings.model.parts),
        *([_calibrate(settings, sources)] if _calibration(settings) else []),
        *(_quantize_weights(settings, group) for group in _quantized(settings)),
        *(_export(settings, name) for name in groups),
        *_kernels(settings).values(),
        *(_compile(settings, name) for name in groups),
        *_golden(settings),
    ]


def load_stage(settings: Settings, sources: Sources | None, group: str) -> Load:
    """Returns the stage that writes the weights of a group.

    Raises:
        UsageError: ``VIDC-BUILD-SOURCES``, nothing says where they come from.
    """
    model, precision = settings.model, settings.precision[group]
    part = model.parts[group]
    if sources is None:
        return Load(part, type(model), precision, None)
    weights, extra = sources.weights(part), sources.extra(model, group)
    ema = settings.checkpoint.ema and group == model.quantized_group
    return Load(part, type(model), precision, weights, extra.loras, extra.tokenizer, ema)


def export_stage(settings: Settings, name: str) -> Export:
    """Returns the stage that exports a component in high precision."""
    group = settings.model.components[name]
    return Export(settings.model.parts[group], settings.precision[group], name)


def record_stage(settings: Settings, prompts: Prompts, seed: int, device_type: str) -> Calibrate:
    """Returns the stage that runs rollouts and records activation ranges.

    Args:
        settings: of the model and its high precisions.
        prompts: at least one.
        seed: of the noise.
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


def package_step(settings: Settings) -> Package:
    """Returns the step that makes a bundle of the stages' results."""
    quantized = _quantized(settings)
    return Package(
        settings,
        weights={
            group: f"{'quantize' if group in quantized else 'load'}:{group}"
            for group in settings.model.parts
        },
        golden=_golden(settings)[-1].name,
        calibration=_calibration(settings),
    )


def slot(settings: Settings) -> str:
    """Returns the name under which the store remembers a build, for ``--plan`` to compare."""
    precision = "-".join(settings.named_precision(group) for group in settings.model.parts)
    return f"{settings.preset}/{settings.target.name}/{settings.backend}/{precision}"


def _calibration(settings: Settings) -> str | None:
    """Returns the stage that gives the recipe its ranges; None if it takes none."""
    calibrated = settings.quantization is not None and settings.quantization.calibrated
    return calibrate_name(settings.model) if calibrated else None


def _calibrate(settings: Settings, sources: Sources | None) -> Calibrate:
    """Returns the calibration stage: given ranges, or ranges of the preset's prompts."""
    if sources is None:
        return Calibrate(settings.model, None)
    if sources.calibration is not None:
        return Calibrate(settings.model, sources.calibration)
    return record_stage(settings, build_prompts(settings), 0, recording_device(settings))


def _quantized(settings: Settings) -> tuple[str, ...]:
    """Returns the weights groups that are quantized."""
    return tuple(g for g in settings.model.parts if settings.quantized(g) is not None)


def _export(settings: Settings, name: str) -> Export:
    """Returns the stage that exports a component as the backend takes it."""
    made = export_stage(settings, name)
    if settings.quantized(made.part.group) is None:
        return made
    support = backend(settings.backend).quantization(settings.target)
    return replace(made, formats=_formats(settings), onnx=support.onnx)


def _quantize_weights(settings: Settings, group: str) -> QuantizeWeights:
    return QuantizeWeights(
        settings.model, settings.precision[group], _formats(settings), _calibration(settings)
    )


def _formats(settings: Settings) -> Quantization:
    """Returns the formats of the quantized group's layers.

    Refuses an unsupported recipe before any stage runs.
    """
    assert settings.quantization is not None
    support = backend(settings.backend).quantization(settings.target)
    return lowered_formats(settings.quantization.recipe, settings.model, support)


def _kernels(settings: Settings) -> dict[str, CompileKernel]:
    """Returns the stages that compile the backend's kernels, by the kernels' names."""
    names = backend(settings.backend).kernels(settings.target)
    if not names:
        return {}
    from vidc.exporters.models import PRECISIONS
    from vidc.plugins.signature import DTYPE_NAMES

    part = settings.model.quantized_part
    dtype = DTYPE_NAMES[PRECISIONS[settings.precision[part.group]]]
    (head_dim,) = {each.head_dim for each in part.attentions.values()}
    return {name: CompileKernel(name, dtype, head_dim) for name in names}


def _compile(settings: Settings, name: str) -> Compile:
    group = settings.model.components[name]
    kernels = _kernels(settings) if group == settings.model.quantized_group else {}
    made = Compile(
        component=name,
        precision=settings.precision[group],
        graph=f"export:{name}",
        kernels={kernel: stage.name for kernel, stage in kernels.items()},
        backend=settings.backend,
        target=settings.target,
        limits=limits(settings),
        device_bytes=compile_bytes(settings, name),
    )
    return replace(made, device_bytes=0) if made.portable else made


def _golden(settings: Settings) -> list[Stage]:
    """Returns the stages that write golden data; only the last one's result is packaged."""
    target = settings.target
    exact = PlayGolden(
        model=settings.model,
        precisions={group: settings.precision[group] for group in settings.model.parts},
        scenario=scenario(settings),
        prompts=tuple(settings.validate.prompts),
        device_type=target.device_type,
        target=target.to_json() if target.is_gpu else None,
        device_bytes=golden_bytes(settings),
    )
    if not _quantized(settings):
        return [exact]
    formats, ranges = _formats(settings), _calibration(settings)
    return [exact, PlayQuantized(exact, formats, ranges, device_bytes=exact.device_bytes)]
