"""Stages that write what a bundle is held to."""

from dataclasses import asdict, replace

from vidc.compiler.calibrate.document import DOCUMENT, TENSORS
from vidc.compiler.device_memory import golden_bytes
from vidc.compiler.estimate import scenario
from vidc.compiler.graph.quantised import form_of, quantised_groups, rules
from vidc.compiler.graph.weights import weights_files
from vidc.compiler.graph.work import LIBRARIES, plain, runner
from vidc.compiler.pipeline.stage import Input, Stage
from vidc.compiler.settings.resolve import Settings
from vidc.compiler.validate.golden import QUANTISED_STAGE
from vidc.compiler.versions import versions
from vidc.exporters.components import weights_groups


def golden_stage_name(settings: Settings) -> str:
    """The stage that writes what a bundle is held to."""
    return QUANTISED_STAGE if quantised_groups(settings) else "golden"


def golden_stage(settings: Settings) -> Stage:
    """The stage that plays PyTorch's components and rollout."""
    groups = weights_groups(settings.model)
    precisions = {group: settings.precision[group] for group in groups}
    played = scenario(settings)
    libraries = [library for group in groups for library in LIBRARIES[group]]
    if "text_encoder" in groups:
        libraries.append("ftfy")
    return Stage(
        name="golden",
        run=runner(
            "golden", config=settings.model, precisions=precisions, scenario=played,
            prompts=settings.validate.prompts, device_type=settings.target.device_type,
        ),
        entries=("vidc.compiler.stages.golden",),
        config={
            "model": plain(asdict(settings.model)),
            "precisions": precisions,
            "scenario": played.to_json(),
            "prompts": list(settings.validate.prompts) if "text_encoder" in groups else [],
        },
        inputs=tuple(Input(f"load:{group}", weights_files(group)) for group in groups),
        tools=versions("torch", *libraries),
        target=settings.target.to_json() if settings.target.is_gpu else None,
        device_bytes=golden_bytes(settings),
    )  # fmt: skip


def golden_quantised_stage(settings: Settings, group: str) -> Stage:
    """The stage that plays the same in a recipe's numbers."""
    exact = golden_stage(settings)
    quantized = settings.quantized(group)
    assert quantized is not None
    calibration = (Input(f"quantise:{group}", (DOCUMENT, TENSORS)),) if quantized.calibrated else ()
    precisions = {each: settings.precision[each] for each in weights_groups(settings.model)}
    return replace(
        exact,
        name=golden_stage_name(settings),
        run=runner(
            "golden_quantised", config=settings.model, precisions=precisions, group=group,
            recipe=quantized.recipe, calibrated=quantized.calibrated,
            device_type=settings.target.device_type, form=form_of(settings),
        ),
        entries=("vidc.compiler.stages.golden_quantised",),
        config={
            "model": plain(asdict(settings.model)),
            "precisions": precisions,
            "rules": rules(settings, group),
            "form": form_of(settings).name,
        },
        inputs=(Input("golden"), *exact.inputs, *calibration),
    )  # fmt: skip
