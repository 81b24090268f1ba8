"""All stages of a build: the one place where settings and sources become stages."""

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from vidc.compiler.backends import backend
from vidc.compiler.build.compile import Compile
from vidc.compiler.build.device_memory import compile_bytes, golden_bytes
from vidc.compiler.build.export import Export
from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.build.load import Load
from vidc.compiler.build.package import Package
from vidc.compiler.build.sources import Sources
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Stage
from vidc.compiler.validate.estimate import scenario

if TYPE_CHECKING:
    from vidc.compiler.build.kernel import CompileKernel
    from vidc.compiler.quantize.apply import Quantization

WORKERS = min(12, len(os.sched_getaffinity(0)))
"""Largest number of stages that run at once, about one for each component.

Each uses about 1 GB and one thread."""


def stages(settings: Settings, sources: Sources | None) -> list[Stage]:
    """Returns the stages of a build before packaging, in topological order.

    Args:
        settings: what to build.
        sources: origin of the weights; None if another machine ran the portable stages. Keys of
            these stages then omit the files that the other machine read.

    Raises:
        UsageError: ``VIDC-BUILD-SOURCES``, ``VIDC-CALIBRATION-NEEDED``.
        UnavailableError: ``VIDC-RECIPE-LOWERING``, ``VIDC-TENSORRT-COMPATIBLE``.
    """
    groups = settings.model.components
    return [
        *(load_stage(settings, sources, group) for group in settings.model.parts),
        *_calibrate(settings, sources),
        *(_quantize_weights(settings, group) for group in _quantized(settings)),
        *(_export(settings, name) for name in groups),
        *_kernels(settings).values(),
        *(_compile(settings, name) for name in groups),
        *_golden(settings),
    ]


def load_stage(settings: Settings, sources: Sources | None, group: str) -> Load:
    """Returns the stage that loads a weights group and writes it in high precision.

    Raises:
        UsageError: ``VIDC-BUILD-SOURCES``, no source of these weights is given.
    """
    model, precision = settings.model, settings.precision[group]
    part = model.parts[group]
    if sources is None:
        return Load(part, type(model), precision, None)
    main = group == model.quantized_group
    return Load(
        part,
        type(model),
        precision,
        sources.weights(part),
        loras=sources.loras if main else (),
        tokenizer=sources.tokenizer if part.needs_tokenizer else None,
        ema=settings.checkpoint.ema and main,
    )


def export_stage(settings: Settings, name: str) -> Export:
    """Returns the stage that exports a component in high precision."""
    group = settings.model.components[name]
    return Export(settings.model.parts[group], settings.precision[group], name)


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
    """Returns the name under which the store remembers a build, for ``--plan`` to compare with."""
    precision = "-".join(settings.named_precision(group) for group in settings.model.parts)
    return f"{settings.preset}/{settings.target.name}/{settings.backend}/{precision}"


def _calibration(settings: Settings) -> str | None:
    """Returns the name of the stage that provides the recipe's ranges; None if it needs none."""
    if settings.quantization is None or not settings.quantization.calibrated:
        return None
    from vidc.compiler.build.calibrate import calibrate_name

    return calibrate_name(settings.model)


def _calibrate(settings: Settings, sources: Sources | None) -> list[Stage]:
    """Returns the stage that provides the recipe's ranges, if it needs any."""
    if _calibration(settings) is None:
        return []
    from vidc.compiler.build.calibrate import calibrate_stage

    return [calibrate_stage(settings, sources)]


def _quantized(settings: Settings) -> tuple[str, ...]:
    """Returns the weights groups that are quantized."""
    return tuple(g for g in settings.model.parts if settings.quantized(g) is not None)


def _export(settings: Settings, name: str) -> Export:
    """Returns the stage that exports a component, with quantized layers if it has any."""
    made = export_stage(settings, name)
    if settings.quantized(made.part.group) is None:
        return made
    support = backend(settings.backend).quantization(settings.target)
    return replace(made, formats=quantized_formats(settings), onnx=support.onnx)


def _quantize_weights(settings: Settings, group: str) -> Stage:
    from vidc.compiler.build.quantize_weights import QuantizeWeights

    formats = quantized_formats(settings)
    return QuantizeWeights(
        settings.model, settings.precision[group], formats, _calibration(settings)
    )


def quantized_formats(settings: Settings) -> "Quantization":
    """Returns the formats of the quantized group's layers.

    Raises:
        UnavailableError, UsageError: as ``supported_formats``, before any stage runs.
    """
    from vidc.compiler.quantize.formats import supported_formats

    assert settings.quantization is not None
    support = backend(settings.backend).quantization(settings.target)
    return supported_formats(settings.quantization.recipe, settings.model, support)


def _kernels(settings: Settings) -> dict[str, "CompileKernel"]:
    """Returns the stages that compile the backend's attention kernels, by the kernels' names."""
    part = settings.model.quantized_part
    names = backend(settings.backend).kernels(settings.target)
    if not names or not part.attentions:
        return {}
    from vidc.compiler.build.kernel import CompileKernel
    from vidc.exporters.models import PRECISIONS
    from vidc.plugins.signature import DTYPE_NAMES

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
        limits=_limits(settings),
        device_bytes=compile_bytes(settings, name),
    )
    return replace(made, device_bytes=0) if made.portable else made


def _limits(settings: Settings) -> dict[str, Json]:
    """Returns the fields of ``CompileOptions`` that the configuration sets, and their values."""
    if settings.backend == "aoti":
        gpu, measure = settings.target.is_gpu, settings.aoti.measure
        return {"measure": False} if gpu and not measure else {}
    if settings.backend not in ("tensorrt", "torch_tensorrt"):
        return {}
    from vidc.compiler.backends.tensorrt.compatible import limits

    return limits(settings)


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
    from vidc.compiler.build.golden_quantized import PlayQuantized

    formats, ranges = quantized_formats(settings), _calibration(settings)
    return [exact, PlayQuantized(exact, formats, ranges, device_bytes=exact.device_bytes)]
