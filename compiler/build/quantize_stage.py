"""Stages that write weights and components in 8 bits."""

from vidc.compiler.backends import backend
from vidc.compiler.build.calibrate_stage import CALIBRATE
from vidc.compiler.build.work import Work, group_sizes, runner
from vidc.compiler.config.resolve import Settings
from vidc.compiler.quantize.form import GRAPH, Form
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.store.digest import Json
from vidc.compiler.store.stage import Input, Stage
from vidc.compiler.store.versions import versions
from vidc.exporters.components import component_groups, weights_groups


def weights_stage_name(settings: Settings, group: str) -> str:
    """The stage that writes a group's weights as engines take them."""
    return f"quantize:{group}" if group in quantized_groups(settings) else f"load:{group}"


def graph_stage_name(settings: Settings, name: str) -> str:
    """The stage that writes a component's graph as a backend compiles it."""
    quantized = name in quantized_components(settings)
    return f"quantize:{name}" if quantized else f"export:{name}"


def quantized_groups(settings: Settings) -> tuple[str, ...]:
    """The weights groups that are quantized."""
    return tuple(g for g in weights_groups(settings.model) if settings.quantized(g) is not None)


def quantized_components(settings: Settings) -> tuple[str, ...]:
    """The components of the groups that are quantized."""
    groups, quantized = component_groups(settings.model), quantized_groups(settings)
    return tuple(name for name, group in groups.items() if group in quantized)


def quantize_weights_stage(settings: Settings, group: str) -> Stage:
    """The stage that writes a group's weights by the recipe; raises as ``quantized_linears``."""
    work = quantize_weights_work(settings, group)
    quantized = settings.quantized(group)
    assert quantized is not None
    # Before anything is built: what a recipe asks for, engines must be able to hold.
    form = form_of(settings)
    quantized_linears(quantized.recipe, settings.model, form)
    calibration = (Input(CALIBRATE),) if quantized.calibrated else ()
    return Stage(
        name=f"quantize:{group}",
        run=runner(
            "quantize_weights", config=settings.model, group=group, recipe=quantized.recipe,
            calibrated=quantized.calibrated, form=form,
        ),
        entries=work.entries,
        config=work.config,
        inputs=(Input(f"load:{group}"), *calibration),
        tools=versions("torch"),
    )  # fmt: skip


def quantize_weights_work(settings: Settings, group: str) -> Work:
    """What the stage of ``quantize_weights_stage`` does."""
    return Work(
        ("vidc.compiler.build.quantize_weights_run",),
        {
            "sizes": group_sizes(settings, group),
            "rules": rules(settings, group),
            "form": form_of(settings).name,
        },
    )


def quantize_component_stage(settings: Settings, name: str) -> Stage:
    """The stage that writes a component's graph by the recipe."""
    group = component_groups(settings.model)[name]
    work = quantize_component_work(settings, name)
    quantized = settings.quantized(group)
    assert quantized is not None
    form = form_of(settings)
    return Stage(
        name=f"quantize:{name}",
        run=runner(
            "quantize_component", config=settings.model, group=group,
            precision=settings.precision[group], component=name, recipe=quantized.recipe,
            form=form,
        ),
        entries=work.entries,
        config=work.config,
        inputs=(Input(f"export:{name}"),),
        tools=versions("torch", *(("onnx", "onnxscript", "onnx-ir") if form == GRAPH else ())),
    )  # fmt: skip


def quantize_component_work(settings: Settings, name: str) -> Work:
    """What the stage of ``quantize_component_stage`` does."""
    group = component_groups(settings.model)[name]
    return Work(
        ("vidc.compiler.build.quantize_component_run", form_of(settings).writer),
        {
            "sizes": group_sizes(settings, group),
            "precision": settings.precision[group],
            "rules": rules(settings, group),
        },
    )


def form_of(settings: Settings) -> Form:
    """How the backend takes quantized components."""
    return backend(settings.backend).form(settings.target)


def rules(settings: Settings, group: str) -> Json:
    """What a recipe says, whatever it is called."""
    quantized = settings.quantized(group)
    assert quantized is not None
    document: dict[str, Json] = quantized.to_json()
    return {kind: document[kind] for kind in ("linear", "attention")}
