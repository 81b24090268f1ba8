"""The stages of a build, and what each one's result depends on."""

import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from vidc.compiler.backends import backend
from vidc.compiler.estimate import scenario
from vidc.compiler.pipeline.digest import Json
from vidc.compiler.pipeline.stage import Input, Stage, Workspace
from vidc.compiler.settings.resolve import Settings
from vidc.exporters.components import component_groups, weights_groups

WORKERS = min(4, os.cpu_count() or 1)
"""Stages built side by side: each takes up to a GB, and one thread of Python or of a compiler."""

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
    """

    checkpoints: Mapping[str, Path]
    lora: Path | None = None
    seed: int | None = None
    tokenizer: Path | None = None


def stages(settings: Settings, sources: Sources) -> list[Stage]:
    """The stages of a build up to packaging, in topological order."""
    groups = component_groups(settings.model)
    return [
        *(_load(settings, sources, group) for group in weights_groups(settings.model)),
        *(_export(settings, name, group) for name, group in groups.items()),
        *(_compile(settings, name, group) for name, group in groups.items()),
        _golden(settings),
    ]


def slot(settings: Settings) -> str:
    """Names a build among others, so that a plan can say what changed since the last."""
    precision = "-".join(settings.precision[group] for group in weights_groups(settings.model))
    return f"{settings.preset}/{settings.target.name}/{settings.backend}/{precision}"


def _load(settings: Settings, sources: Sources, group: str) -> Stage:
    checkpoint = sources.checkpoints.get(group)
    lora = sources.lora if group == "transformer" else None
    tokenizer = sources.tokenizer if group == "text_encoder" else None
    files = {"checkpoint": checkpoint, "lora": lora, "tokenizer": tokenizer}
    precision = settings.precision[group]
    return Stage(
        name=f"load:{group}",
        run=_runner(
            "load", config=settings.model, group=group, precision=precision,
            checkpoint=checkpoint, lora=lora, seed=sources.seed, tokenizer=tokenizer,
        ),
        entries=("vidc.compiler.stages.load",),
        config={
            "sizes": _group_sizes(settings, group),
            "text_len": settings.model.transformer.text_len if tokenizer else None,
            "precision": precision,
            "seed": None if checkpoint else sources.seed,
        },
        files={label: path for label, path in files.items() if path is not None},
        tools=_versions("torch", *_LIBRARIES[group]),
    )  # fmt: skip


def _export(settings: Settings, name: str, group: str) -> Stage:
    precision = settings.precision[group]
    stream = asdict(settings.model.stream)
    fields = _STREAM_FIELDS.get(name, _STREAM_FIELDS.get(group, tuple(stream)))
    return Stage(
        name=f"export:{name}",
        run=_runner(
            "export", config=settings.model, group=group, precision=precision, component=name
        ),
        entries=("vidc.compiler.stages.export",),
        config={
            "sizes": _group_sizes(settings, group),
            "stream": {field: stream[field] for field in fields},
            "precision": precision,
        },
        tools=_versions("torch", "onnx", "onnxscript", "onnx-ir", *_LIBRARIES[group]),
    )


def _compile(settings: Settings, name: str, group: str) -> Stage:
    return Stage(
        name=f"compile:{name}",
        run=_runner("compile", component=name, backend_name=settings.backend),
        entries=("vidc.compiler.stages.compile", f"vidc.compiler.backends.{settings.backend}"),
        config={"precision": settings.precision[group]},
        inputs=(Input(f"export:{name}"),),
        tools=dict(backend(settings.backend).tools()),
        target=settings.target.to_json(),
    )


def _golden(settings: Settings) -> Stage:
    groups = weights_groups(settings.model)
    precisions = {group: settings.precision[group] for group in groups}
    played = scenario(settings)
    return Stage(
        name="golden",
        run=_runner("golden", config=settings.model, precisions=precisions, scenario=played),
        entries=("vidc.compiler.stages.golden",),
        config={
            "model": _plain(asdict(settings.model)),
            "precisions": precisions,
            "scenario": played.to_json(),
        },
        inputs=tuple(Input(f"load:{group}") for group in groups),
        tools=_versions("torch", *(library for group in groups for library in _LIBRARIES[group])),
    )


def _group_sizes(settings: Settings, group: str) -> Json:
    sizes = {
        "transformer": settings.model.transformer,
        "vae": settings.model.vae,
        "text_encoder": settings.model.text_encoder,
    }[group]
    assert sizes is not None
    plain: Json = _plain(asdict(sizes))
    return plain


def _runner(stage: str, **arguments: Any) -> Callable[[Workspace], None]:
    return partial(_run, stage, arguments)


def _run(stage: str, arguments: Mapping[str, Any], workspace: Workspace) -> None:
    # A stage's module is imported when it runs: a build that finds everything runs none.
    import_module(f"vidc.compiler.stages.{stage}").run(workspace, **arguments)


def _versions(*packages: str) -> dict[str, str]:
    return {package: version(package) for package in packages}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
