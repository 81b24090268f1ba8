"""Stages that export a component."""

from dataclasses import asdict

from vidc.compiler.build.work import LIBRARIES, Work, group_sizes, runner, text_len
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.stage import Stage
from vidc.compiler.store.versions import versions
from vidc.exporters.components import component_groups

_STREAM_FIELDS: dict[str, tuple[str, ...]] = {
    "text_encoder": (),
    "text_kv": ("batch",),
    "vae": ("batch", "block", "height", "width"),
}
"""The stream's settings that reach a component, where not all do."""


def export_stage(settings: Settings, name: str) -> Stage:
    """The stage that exports a component."""
    group = component_groups(settings.model)[name]
    precision = settings.precision[group]
    work = export_work(settings, name)
    return Stage(
        name=f"export:{name}",
        run=runner(
            "export", config=settings.model, group=group, precision=precision, component=name
        ),
        entries=work.entries,
        config=work.config,
        tools=versions("torch", "onnx", "onnxscript", "onnx-ir", *LIBRARIES[group]),
    )


def export_work(settings: Settings, name: str) -> Work:
    """What the stage of ``export_stage`` does."""
    group = component_groups(settings.model)[name]
    stream = asdict(settings.model.stream)
    fields = _STREAM_FIELDS.get(name, _STREAM_FIELDS.get(group, tuple(stream)))
    return Work(
        ("vidc.compiler.build.export_run",),
        {
            "sizes": group_sizes(settings, group),
            "stream": {field: stream[field] for field in fields},
            "text_len": text_len(settings, group),
            "precision": settings.precision[group],
        },
    )
