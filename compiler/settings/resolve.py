"""What is to be built: every setting at the value that the highest layer gives it."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from vidc.compiler.dotted import flatten
from vidc.compiler.settings.backend import DEFAULT, choose_backend, choose_builder
from vidc.compiler.settings.environment import environment_layer
from vidc.compiler.settings.layers import Layer, Setting, assignment_layer, file_layer
from vidc.compiler.settings.precision import require_built, require_exported, resolve_precision
from vidc.compiler.settings.presets import DEFAULT_PRESET, load_preset
from vidc.compiler.settings.schema import TABLES, ValidateConfig
from vidc.compiler.settings.tables import read_model, read_validate, write_tables
from vidc.compiler.settings.targets import AUTO, Target, find_target
from vidc.exporters.config import ModelConfig


@dataclass(frozen=True)
class Settings:
    """A resolved configuration.

    Attributes:
        preset: its name, or its file's.
        family: of the model.
        model: sizes, stream and sampler.
        precision: of each weights group.
        target: what the engines are for.
        backend: what builds them; where none are to be built, only a name.
        validate: the rollout that validates them.
        origins: where each value came from, by the dotted names of ``values``.
    """

    preset: str
    family: str
    model: ModelConfig
    precision: Mapping[str, str]
    target: Target
    backend: str
    validate: ValidateConfig
    origins: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """The configuration without its origins, as plain JSON values."""
        return {
            "preset": self.preset,
            "family": self.family,
            "target": self.target.to_json(),
            "backend": self.backend,
            "precision": dict(self.precision),
            **write_tables(self.model, self.validate),
            "text_encoder": None
            if self.model.text_encoder is None
            else asdict(self.model.text_encoder),
        }

    def values(self) -> dict[str, Any]:
        """Every setting by its dotted name, as ``--plan`` shows it."""
        document = self.to_json()
        del document["target"], document["text_encoder"]
        return flatten({"gpu": self.target.name, **document})


def resolve(
    preset: str | None = None,
    *,
    gpu: str | None = None,
    precision: str | None = None,
    backend: str | None = None,
    assignments: Sequence[str] = (),
    config: Path | None = None,
    environ: Mapping[str, str],
    engines: bool = True,
) -> Settings:
    """The settings of a build: flag over environment over ``--config`` over preset over default.

    Args:
        preset: a name or a path to a TOML file; ``longlive-1.3b`` by default.
        gpu: ``--gpu``: a target or ``auto``.
        precision: ``--precision``, of every weights group that ``--set`` does not name.
        backend: ``--backend``.
        assignments: ``--set key=value``, of the flags' precedence; a flag of its own wins.
        config: the file of ``--config``.
        environ: the environment, whose ``VIDC_`` variables are read.
        engines: whether engines are to be built: for graphs alone no backend has to fit.

    Raises:
        UsageError: an unknown or unfit preset, setting, target, precision or backend, with the
            nearest known name.
        UnavailableError: ``VIDC-TARGET-AUTO`` for an unknown GPU, ``VIDC-BACKEND-TARGET`` for a
            target that no backend builds for; ``VIDC-TARGET-PRECISION``,
            ``VIDC-BACKEND-PRECISION`` or ``VIDC-EXPORT-PRECISION`` for a precision that the
            target, the backend or the export does not have.
    """
    chosen = load_preset(preset or DEFAULT_PRESET)
    flags = {"gpu": gpu, "precision.default": precision, "backend": backend}
    layers: list[Layer] = [
        chosen.layer,
        file_layer(config) if config else {},
        environment_layer(environ),
        assignment_layer(assignments)
        | {
            name: Setting(value, f"--{name.removesuffix('.default')}")
            for name, value in flags.items()
            if value is not None
        },
    ]
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged |= layer

    model, validate = read_model(merged), read_validate(merged)
    gpu_setting = merged.get("gpu", Setting(AUTO, DEFAULT))
    target = find_target(str(gpu_setting.value), gpu_setting.origin)
    asked = merged.get("backend")
    chosen_backend = (
        choose_builder(asked, target, gpu_setting) if engines else choose_backend(asked)
    )
    precisions = resolve_precision(layers, target)
    if engines:
        require_built(precisions, chosen_backend.value, target)
    else:
        require_exported(precisions)
    return Settings(
        preset=chosen.name,
        family=chosen.family,
        model=model,
        precision={group: setting.value for group, setting in precisions.items()},
        target=target,
        backend=chosen_backend.value,
        validate=validate,
        origins={
            "preset": "argument" if preset else DEFAULT,
            "family": f"preset {chosen.name}",
            "gpu": gpu_setting.origin,
            "backend": chosen_backend.origin,
            **{f"precision.{group}": setting.origin for group, setting in precisions.items()},
            **_table_origins(merged),
        },
    )


def _table_origins(merged: Layer) -> dict[str, str]:
    known = [f"{table}.{field.name}" for table, kind in TABLES.items() for field in fields(kind)]
    return {name: merged[name].origin if name in merged else DEFAULT for name in known}
