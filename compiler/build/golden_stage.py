"""Stages that write what a bundle is held to."""

from dataclasses import asdict, replace

from vidc.compiler.build.calibrate_stage import CALIBRATE
from vidc.compiler.build.device_memory import golden_bytes
from vidc.compiler.build.load_stage import weights_files
from vidc.compiler.build.quantize_stage import form_of, quantized_groups, rules
from vidc.compiler.build.work import LIBRARIES, plain, runner
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.stage import Input, Stage
from vidc.compiler.store.versions import versions
from vidc.compiler.validate.estimate import scenario
from vidc.compiler.validate.golden import QUANTIZED_STAGE
from vidc.exporters.components import weights_groups


def golden_stage_name(settings: Settings) -> str:
    """The stage that writes what a bundle is held to."""
    return QUANTIZED_STAGE if quantized_groups(settings) else "golden"


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
        entries=("vidc.compiler.build.golden_run",),
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


def golden_quantized_stage(settings: Settings, group: str) -> Stage:
    """The stage that plays the same in a recipe's numbers."""
    exact = golden_stage(settings)
    quantized = settings.quantized(group)
    assert quantized is not None
    calibration = (Input(CALIBRATE),) if quantized.calibrated else ()
    precisions = {each: settings.precision[each] for each in weights_groups(settings.model)}
    return replace(
        exact,
        name=golden_stage_name(settings),
        run=runner(
            "golden_quantized", config=settings.model, precisions=precisions,
            recipe=quantized.recipe, calibrated=quantized.calibrated,
            device_type=settings.target.device_type, form=form_of(settings),
        ),
        entries=("vidc.compiler.build.golden_quantized_run",),
        config={
            "model": plain(asdict(settings.model)),
            "precisions": precisions,
            "rules": rules(settings, group),
            "form": form_of(settings).name,
        },
        inputs=(Input("golden"), *exact.inputs, *calibration),
    )  # fmt: skip
