"""All stages of a build, in topological order."""

import os

from vidc.compiler.build.calibrate_stage import (
    CALIBRATE,
    calibrate_stage,
    calibrate_work,
    is_calibrated,
)
from vidc.compiler.build.compile_stage import (
    anywhere,
    compile_stage,
    compile_work,
    kernel_stage,
    kernel_work,
    kernels,
)
from vidc.compiler.build.export_stage import export_stage, export_work
from vidc.compiler.build.golden_stage import golden_quantized_stage, golden_stage
from vidc.compiler.build.load_stage import load_stage, load_work
from vidc.compiler.build.quantize_stage import (
    quantize_component_stage,
    quantize_component_work,
    quantize_weights_stage,
    quantize_weights_work,
    quantized_components,
    quantized_groups,
)
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.work import Work
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.stage import Stage
from vidc.exporters.components import component_groups, weights_groups

WORKERS = min(12, len(os.sched_getaffinity(0)))
"""Stages built side by side: each takes a GB, and one thread of Python or of a compiler.

As many as a model has components."""


def stages(settings: Settings, sources: Sources) -> list[Stage]:
    """The stages of a build up to packaging, in topological order."""
    return [*portable_stages(settings, sources), *target_stages(settings)]


def portable_stages(settings: Settings, sources: Sources) -> list[Stage]:
    """Those that any machine runs and whose results are right on every other."""
    groups = component_groups(settings.model)
    return [
        *(load_stage(settings, sources, group) for group in weights_groups(settings.model)),
        *([calibrate_stage(settings, sources)] if is_calibrated(settings) else []),
        *(quantize_weights_stage(settings, group) for group in quantized_groups(settings)),
        *(export_stage(settings, name) for name in groups),
        *(quantize_component_stage(settings, name) for name in quantized_components(settings)),
        *(kernel_stage(settings, stage) for stage in kernels(settings)),
        *(compile_stage(settings, name, groups[name]) for name in groups if anywhere(settings)),
    ]


def portable_work(settings: Settings) -> dict[str, Work]:
    """What each of ``portable_stages`` does, for a machine that has neither sources nor tools."""
    groups = component_groups(settings.model)
    compiled = groups if anywhere(settings) else ()
    return {
        **{f"load:{g}": load_work(settings, g) for g in weights_groups(settings.model)},
        **({CALIBRATE: calibrate_work(settings)} if is_calibrated(settings) else {}),
        **{f"quantize:{g}": quantize_weights_work(settings, g) for g in quantized_groups(settings)},
        **{f"export:{n}": export_work(settings, n) for n in groups},
        **{
            f"quantize:{n}": quantize_component_work(settings, n)
            for n in quantized_components(settings)
        },
        **{stage: kernel_work(settings, stage) for stage in kernels(settings)},
        **{f"compile:{n}": compile_work(settings, groups[n]) for n in compiled},
    }


def target_stages(settings: Settings) -> list[Stage]:
    """Those after ``portable_stages``, which need the machine that the bundle is for."""
    groups = component_groups(settings.model)
    return [
        *(compile_stage(settings, name, groups[name]) for name in groups if not anywhere(settings)),
        golden_stage(settings),
        *(golden_quantized_stage(settings, group) for group in quantized_groups(settings)),
    ]


def stage_count(settings: Settings) -> int:
    """How many stages a build has, packaging included."""
    components = len(component_groups(settings.model))
    # Of a quantized group, weights and golden data.
    quantized = 2 * len(quantized_groups(settings)) + len(quantized_components(settings))
    loaded = len(weights_groups(settings.model)) + is_calibrated(settings)
    return loaded + quantized + 2 * components + len(kernels(settings)) + 2


def slot(settings: Settings) -> str:
    """Names a build among others, so that a plan can say what changed since the last."""
    precision = "-".join(
        settings.named_precision(group) for group in weights_groups(settings.model)
    )
    return f"{settings.preset}/{settings.target.name}/{settings.backend}/{precision}"
