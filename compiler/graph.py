"""The stages of a build, and what each one's result depends on."""

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from vidc.compiler.backends import backend
from vidc.compiler.calibrate.document import DOCUMENT, TENSORS
from vidc.compiler.device_memory import compile_bytes, golden_bytes
from vidc.compiler.estimate import scenario
from vidc.compiler.pipeline.digest import Json
from vidc.compiler.pipeline.stage import Input, Stage, Workspace
from vidc.compiler.quantise.form import GRAPH, Form
from vidc.compiler.quantise.lowering import quantized_linears
from vidc.compiler.settings.resolve import Settings
from vidc.compiler.tensorrt.limits import limits
from vidc.compiler.validate.golden import QUANTISED_STAGE
from vidc.compiler.versions import versions
from vidc.exporters.checkpoint import checkpoint_files, lora_files
from vidc.exporters.components import component_groups, weights_groups
from vidc.exporters.models import PRECISIONS
from vidc.exporters.text_encoder.tokenizer import is_sentencepiece, tokenizer_files
from vidc.plugins.errors import UsageError
from vidc.plugins.names import TOKENIZER, weights_path
from vidc.plugins.signature import DTYPE_NAMES

WORKERS = min(12, len(os.sched_getaffinity(0)))
"""Stages built side by side: each takes a GB, and one thread of Python or of a compiler.

As many as a model has components."""

_LIBRARIES = {
    "transformer": (),
    "vae": ("diffusers",),
    "text_encoder": ("transformers", "tokenizers"),
}
"""What builds the network of a weights group, besides torch."""
_STREAM_FIELDS: dict[str, tuple[str, ...]] = {
    "text_encoder": (),
    "text_kv": ("batch",),
    "vae": ("batch", "block", "height", "width"),
}
"""The stream's settings that reach a component, where not all do."""


@dataclass(frozen=True)
class Sources:
    """Where the weights come from: files, or a seed in their place.

    Attributes:
        checkpoints: a file or folder for each weights group.
        lora: merged into the transformer.
        seed: of random weights, for groups without a checkpoint.
        tokenizer: the text encoder's.
        calibration: the folder of the transformer's ranges.
    """

    checkpoints: Mapping[str, Path]
    lora: Path | None = None
    seed: int | None = None
    tokenizer: Path | None = None
    calibration: Path | None = None

    def weights(self, group: str) -> Path | int:
        """A group's checkpoint, or the seed of its random weights.

        Raises:
            UsageError: ``VIDC-BUILD-SOURCES``, there is neither, or no text encoder's tokenizer.
        """
        found = self.checkpoints.get(group, self.seed)
        if found is None or (group == "text_encoder" and self.tokenizer is None):
            raise UsageError(
                "VIDC-BUILD-SOURCES",
                f"nothing says where the weights of the {group.replace('_', ' ')} come from",
                "give --checkpoint, --vae and, for a model with a text encoder, --text-encoder; "
                "--random-weights SEED stands for the first two",
            )
        return found


@dataclass(frozen=True)
class Work:
    """What a stage does, wherever its inputs come from and whichever versions of tools do it.

    Attributes:
        entries: modules whose sources it executes.
        config: the settings that reach it.
    """

    entries: tuple[str, ...]
    config: dict[str, Json]


def stages(settings: Settings, sources: Sources) -> list[Stage]:
    """The stages of a build up to packaging, in topological order."""
    return [*portable_stages(settings, sources), *target_stages(settings)]


def portable_stages(settings: Settings, sources: Sources) -> list[Stage]:
    """Those that any machine runs and whose results are right on every other."""
    groups = component_groups(settings.model)
    return [
        *(load_stage(settings, sources, group) for group in weights_groups(settings.model)),
        *(_quantise_weights(settings, sources, group) for group in _quantised(settings)),
        *(export_stage(settings, name) for name in groups),
        *(_quantise_component(settings, name) for name in _quantised_components(settings)),
        *(_kernel(settings, stage) for stage in _kernels(settings)),
        *(_compile(settings, name, groups[name]) for name in groups if _anywhere(settings)),
    ]


def portable_work(settings: Settings) -> dict[str, Work]:
    """What each of ``portable_stages`` does, for a machine that has neither sources nor tools."""
    groups = component_groups(settings.model)
    compiled = groups if _anywhere(settings) else ()
    return {
        **{f"load:{g}": _load_work(settings, g) for g in weights_groups(settings.model)},
        **{f"quantise:{g}": _quantise_weights_work(settings, g) for g in _quantised(settings)},
        **{f"export:{n}": _export_work(settings, n) for n in groups},
        **{
            f"quantise:{n}": _quantise_component_work(settings, n)
            for n in _quantised_components(settings)
        },
        **{stage: _kernel_work(settings, stage) for stage in _kernels(settings)},
        **{f"compile:{n}": _compile_work(settings, groups[n]) for n in compiled},
    }


def target_stages(settings: Settings) -> list[Stage]:
    """Those after ``portable_stages``, which need the machine that the bundle is for."""
    groups = component_groups(settings.model)
    return [
        *(_compile(settings, name, groups[name]) for name in groups if not _anywhere(settings)),
        _golden(settings),
        *(_golden_quantised(settings, group) for group in _quantised(settings)),
    ]


def stage_count(settings: Settings) -> int:
    """How many stages a build has, packaging included."""
    components = len(component_groups(settings.model))
    # Of a quantised group, weights and golden data.
    quantised = 2 * len(_quantised(settings)) + len(_quantised_components(settings))
    loaded = len(weights_groups(settings.model))
    return loaded + quantised + 2 * components + len(_kernels(settings)) + 2


def slot(settings: Settings) -> str:
    """Names a build among others, so that a plan can say what changed since the last."""
    precision = "-".join(
        settings.named_precision(group) for group in weights_groups(settings.model)
    )
    return f"{settings.preset}/{settings.target.name}/{settings.backend}/{precision}"


def load_stage(settings: Settings, sources: Sources, group: str) -> Stage:
    """The stage that writes the weights of a group.

    Raises:
        VidcError: what ``Sources.weights`` and ``checkpoint_files`` raise.
    """
    weights = sources.weights(group)
    lora = sources.lora if group == "transformer" else None
    tokenizer = sources.tokenizer if group == "text_encoder" else None
    files: dict[str, Path] = {}
    libraries = _LIBRARIES[group]
    if isinstance(weights, Path):
        files |= _labelled("checkpoint", checkpoint_files(weights))
    if lora is not None:
        files |= _labelled("lora", lora_files(lora))
    if tokenizer is not None:
        files |= _labelled("tokenizer", tokenizer_files(tokenizer))
        libraries += ("sentencepiece", "protobuf") if is_sentencepiece(tokenizer) else ()
    work = _load_work(settings, group)
    return Stage(
        name=f"load:{group}",
        run=_runner(
            "load", config=settings.model, group=group, precision=settings.precision[group],
            weights=weights, lora=lora, tokenizer=tokenizer,
        ),
        entries=work.entries,
        config={**work.config, "seed": weights if isinstance(weights, int) else None},
        files=files,
        tools=versions("torch", *libraries),
    )  # fmt: skip


def export_stage(settings: Settings, name: str) -> Stage:
    """The stage that exports a component."""
    group = component_groups(settings.model)[name]
    precision = settings.precision[group]
    work = _export_work(settings, name)
    return Stage(
        name=f"export:{name}",
        run=_runner(
            "export", config=settings.model, group=group, precision=precision, component=name
        ),
        entries=work.entries,
        config=work.config,
        tools=versions("torch", "onnx", "onnxscript", "onnx-ir", *_LIBRARIES[group]),
    )


def _load_work(settings: Settings, group: str) -> Work:
    return Work(
        ("vidc.compiler.stages.load",),
        {
            "sizes": _group_sizes(settings, group),
            "text_len": _text_len(settings, group),
            "precision": settings.precision[group],
        },
    )


def _export_work(settings: Settings, name: str) -> Work:
    group = component_groups(settings.model)[name]
    stream = asdict(settings.model.stream)
    fields = _STREAM_FIELDS.get(name, _STREAM_FIELDS.get(group, tuple(stream)))
    return Work(
        ("vidc.compiler.stages.export",),
        {
            "sizes": _group_sizes(settings, group),
            "stream": {field: stream[field] for field in fields},
            "text_len": _text_len(settings, group),
            "precision": settings.precision[group],
        },
    )


def weights_stage(settings: Settings, group: str) -> str:
    """The stage that writes a group's weights as engines take them."""
    return f"quantise:{group}" if group in _quantised(settings) else f"load:{group}"


def graph_stage(settings: Settings, name: str) -> str:
    """The stage that writes a component's graph as a backend compiles it."""
    quantised = name in _quantised_components(settings)
    return f"quantise:{name}" if quantised else f"export:{name}"


def golden_stage(settings: Settings) -> str:
    """The stage that writes what a bundle is held to."""
    return QUANTISED_STAGE if _quantised(settings) else "golden"


def _quantised(settings: Settings) -> tuple[str, ...]:
    """The weights groups that are quantised."""
    return tuple(g for g in weights_groups(settings.model) if settings.quantized(g) is not None)


def _quantised_components(settings: Settings) -> tuple[str, ...]:
    groups, quantised = component_groups(settings.model), _quantised(settings)
    return tuple(name for name, group in groups.items() if group in quantised)


def _quantise_weights(settings: Settings, sources: Sources, group: str) -> Stage:
    work = _quantise_weights_work(settings, group)
    quantized = settings.quantized(group)
    assert quantized is not None
    # Before anything is built: what a recipe asks for, engines must be able to hold.
    form = _form(settings)
    quantized_linears(quantized.recipe, settings.model, form)
    calibration = sources.calibration if quantized.calibrated else None
    if quantized.calibrated and calibration is None:
        raise UsageError(
            "VIDC-CALIBRATION-NEEDED",
            f"recipe {quantized.recipe.name} takes ranges from a calibration, and none is given",
            "make one with vidc calibrate, and pass it as --calibration",
        )
    return Stage(
        name=f"quantise:{group}",
        run=_runner(
            "quantise_weights", config=settings.model, group=group, recipe=quantized.recipe,
            calibration=calibration, form=form,
        ),
        entries=work.entries,
        config=work.config,
        inputs=(Input(f"load:{group}"),),
        files={}
        if calibration is None
        else _labelled("calibration", [calibration / DOCUMENT, calibration / TENSORS]),
        tools=versions("torch"),
    )  # fmt: skip


def _quantise_weights_work(settings: Settings, group: str) -> Work:
    return Work(
        ("vidc.compiler.stages.quantise_weights",),
        {
            "sizes": _group_sizes(settings, group),
            "rules": _rules(settings, group),
            "form": _form(settings).name,
        },
    )


def _quantise_component(settings: Settings, name: str) -> Stage:
    group = component_groups(settings.model)[name]
    work = _quantise_component_work(settings, name)
    quantized = settings.quantized(group)
    assert quantized is not None
    form = _form(settings)
    return Stage(
        name=f"quantise:{name}",
        run=_runner(
            "quantise_component", config=settings.model, group=group,
            precision=settings.precision[group], component=name, recipe=quantized.recipe,
            form=form,
        ),
        entries=work.entries,
        config=work.config,
        inputs=(Input(f"export:{name}"),),
        tools=versions("torch", *(("onnx", "onnxscript", "onnx-ir") if form == GRAPH else ())),
    )  # fmt: skip


def _quantise_component_work(settings: Settings, name: str) -> Work:
    group = component_groups(settings.model)[name]
    return Work(
        ("vidc.compiler.stages.quantise_component", _form(settings).writer),
        {
            "sizes": _group_sizes(settings, group),
            "precision": settings.precision[group],
            "rules": _rules(settings, group),
        },
    )


def _form(settings: Settings) -> Form:
    """How the backend takes quantised components."""
    return backend(settings.backend).form(settings.target)


def _rules(settings: Settings, group: str) -> Json:
    """What a recipe says, whatever it is called."""
    quantized = settings.quantized(group)
    assert quantized is not None
    document: dict[str, Json] = quantized.to_json()
    return {kind: document[kind] for kind in ("linear", "attention")}


def _anywhere(settings: Settings) -> bool:
    """Whether engines for a GPU are compiled on any machine."""
    return settings.target.is_gpu and backend(settings.backend).anywhere(settings.target)


def _compile_work(settings: Settings, group: str) -> Work:
    return Work(
        ("vidc.compiler.stages.compile", f"vidc.compiler.backends.{settings.backend}"),
        {"precision": settings.precision[group], **limits(settings)},
    )


def _compile(settings: Settings, name: str, group: str) -> Stage:
    chosen, target = backend(settings.backend), settings.target
    work = _compile_work(settings, group)
    return Stage(
        name=f"compile:{name}",
        run=_runner(
            "compile",
            component=name,
            backend_name=settings.backend,
            target=target,
            **limits(settings),
        ),
        entries=work.entries,
        config=work.config,
        inputs=(
            Input(graph_stage(settings, name)),
            *(Input(stage) for stage in _kernels(settings) if group == "transformer"),
        ),
        tools=dict(chosen.tools(target)),
        target=target.to_json(),
        device_bytes=0 if _anywhere(settings) else compile_bytes(settings, name),
    )


def _kernels(settings: Settings) -> dict[str, str]:
    """The stages that compile the kernels of the backend, with what each one compiles."""
    kernels = backend(settings.backend).kernels(settings.target)
    return {f"kernel:{kernel}": kernel for kernel in kernels}


def _kernel(settings: Settings, stage: str) -> Stage:
    work = _kernel_work(settings, stage)
    kernel = _kernels(settings)[stage]
    return Stage(
        name=stage,
        run=_runner("kernel", kernel=kernel, **work.config),
        entries=work.entries,
        config=work.config,
        tools=versions("flash-attn-4", "nvidia-cutlass-dsl", "quack-kernels", extra="cuda"),
    )


def _kernel_work(settings: Settings, stage: str) -> Work:
    module = f"vidc.compiler.kernels.{_kernels(settings)[stage]}"
    return Work(
        ("vidc.compiler.stages.kernel", module),
        {
            "dtype": DTYPE_NAMES[PRECISIONS[settings.precision["transformer"]]],
            "head_dim": settings.model.transformer.head_dim,
        },
    )


def _golden(settings: Settings) -> Stage:
    groups = weights_groups(settings.model)
    precisions = {group: settings.precision[group] for group in groups}
    played = scenario(settings)
    libraries = [library for group in groups for library in _LIBRARIES[group]]
    if "text_encoder" in groups:
        libraries.append("ftfy")
    return Stage(
        name="golden",
        run=_runner(
            "golden", config=settings.model, precisions=precisions, scenario=played,
            prompts=settings.validate.prompts, device_type=settings.target.device_type,
        ),
        entries=("vidc.compiler.stages.golden",),
        config={
            "model": _plain(asdict(settings.model)),
            "precisions": precisions,
            "scenario": played.to_json(),
            "prompts": list(settings.validate.prompts) if "text_encoder" in groups else [],
        },
        inputs=tuple(Input(f"load:{group}", _weights_files(group)) for group in groups),
        tools=versions("torch", *libraries),
        target=settings.target.to_json() if settings.target.is_gpu else None,
        device_bytes=golden_bytes(settings),
    )  # fmt: skip


def _golden_quantised(settings: Settings, group: str) -> Stage:
    golden = _golden(settings)
    quantized = settings.quantized(group)
    assert quantized is not None
    calibration = (Input(f"quantise:{group}", (DOCUMENT, TENSORS)),) if quantized.calibrated else ()
    precisions = {each: settings.precision[each] for each in weights_groups(settings.model)}
    return replace(
        golden,
        name=golden_stage(settings),
        run=_runner(
            "golden_quantised", config=settings.model, precisions=precisions, group=group,
            recipe=quantized.recipe, calibrated=quantized.calibrated,
            device_type=settings.target.device_type, form=_form(settings),
        ),
        entries=("vidc.compiler.stages.golden_quantised",),
        config={
            "model": _plain(asdict(settings.model)),
            "precisions": precisions,
            "rules": _rules(settings, group),
            "form": _form(settings).name,
        },
        inputs=(Input("golden"), *golden.inputs, *calibration),
    )  # fmt: skip


def _weights_files(group: str) -> tuple[str, ...]:
    """What ``load`` writes of a group but for its description."""
    text = (TOKENIZER,) if group == "text_encoder" else ()
    return (weights_path(group), *text)


def _labelled(label: str, files: Iterable[Path]) -> dict[str, Path]:
    # Names count: where the weights came from is told by them.
    return {f"{label}.{file.name}": file for file in files}


def _group_sizes(settings: Settings, group: str) -> Json:
    sizes = {
        "transformer": settings.model.transformer,
        "vae": settings.model.vae,
        "text_encoder": settings.model.text_encoder,
    }[group]
    assert sizes is not None
    plain: Json = _plain(asdict(sizes))
    return plain


def _text_len(settings: Settings, group: str) -> int | None:
    return settings.model.transformer.text_len if group == "text_encoder" else None


def _runner(stage: str, **arguments: Any) -> Callable[[Workspace], None]:
    return partial(_run, stage, arguments)


def _run(stage: str, arguments: Mapping[str, Any], workspace: Workspace) -> None:
    # A stage's module is imported when it runs: a build that finds everything runs none.
    import_module(f"vidc.compiler.stages.{stage}").run(workspace, **arguments)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
