"""Reads the settings that a build on another machine recorded, and trusts none of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from vidc.compiler.config.backend import choose_builder
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.precision import require_built
from vidc.compiler.config.quantization import QuantizationConfig
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.schema import (
    AotiConfig,
    CheckpointConfig,
    TensorRtConfig,
    ValidateConfig,
)
from vidc.compiler.config.targets import targets
from vidc.exporters.families import family_names, find_family
from vidc.exporters.families.family import Family
from vidc.plugins.errors import GateError, VidcError
from vidc.runtime.document import check_path
from vidc.runtime.strict import field_error, read


@dataclass(frozen=True)
class _Recorded:
    """Document of ``Settings.to_json`` without the model's tables."""

    preset: str
    family: str
    target: dict[str, Any]
    backend: str
    precision: dict[str, str]
    quantization: dict[str, Any] | None
    checkpoint: dict[str, Any]
    validate: dict[str, Any]
    tensorrt: dict[str, Any]
    aoti: dict[str, Any]

    def __post_init__(self) -> None:
        check_path(self.preset)
        if PurePosixPath(self.preset).name != self.preset:
            raise ValueError(f"preset {self.preset!r} is a path, not a name")
        groups = find_family(self.family).groups
        if self.precision.keys() != set(groups):
            raise ValueError(f"precision is not of {', '.join(groups)}")
        name = self.target.get("name")
        if name not in targets() or targets()[name].to_json() != self.target:
            raise ValueError(f"no target {name!r} of this compute capability and memory")


def recorded_settings(
    config: Mapping[str, Any], origins: Mapping[str, str], where: str
) -> Settings:
    """Inverse of ``Settings.to_json`` for untrusted documents.

    Args:
        config: plain JSON values.
        origins: origin of each setting.
        where: name of the document, for messages.

    Raises:
        GateError: ``VIDC-BUNDLE-FIELD``, a field is unknown, missing or mistyped;
            ``VIDC-PORTABLE-SETTINGS``, this version of vidc refuses the settings.
    """
    family = _family(config, where)
    tables = _tables(config, family, where)
    rest = {name: value for name, value in config.items() if name not in tables}
    recorded: _Recorded = read(rest, _Recorded, where)
    target = targets()[recorded.target["name"]]
    precisions = {group: Setting(value, where) for group, value in recorded.precision.items()}
    try:
        backend = choose_builder(
            Setting(recorded.backend, where), target, Setting(target.name, where)
        )
        require_built(precisions.values(), backend.value, target)
        settings = Settings(
            preset=recorded.preset,
            family=recorded.family,
            model=family.from_tables({n: t for n, t in tables.items() if t is not None}),
            precision=dict(recorded.precision),
            target=target,
            backend=backend.value,
            validate=ValidateConfig.from_table(recorded.validate, "validate"),
            origins=dict(origins),
            quantization=None
            if recorded.quantization is None
            else QuantizationConfig.from_json(recorded.quantization),
            checkpoint=CheckpointConfig.from_table(recorded.checkpoint, "checkpoint"),
            tensorrt=TensorRtConfig.from_table(
                {name: v for name, v in recorded.tensorrt.items() if v is not None}, "tensorrt"
            ),
            aoti=AotiConfig.from_table(recorded.aoti, "aoti"),
        )
    except VidcError as error:
        raise _refused(where, error.message) from error
    if settings.to_json() != config:
        raise _refused(where, "they are not complete")
    return settings


def _family(config: Mapping[str, Any], where: str) -> type[Family]:
    name = config.get("family")
    if name not in family_names():
        raise field_error(where, f"no family {name!r}")
    return find_family(name)


def _tables(config: Mapping[str, Any], family: type[Family], where: str) -> dict[str, Any]:
    """Returns the family's tables as JSON objects; those read from checkpoints may be None."""
    tables = {}
    for name in (*family.tables, *family.read_off):
        if name not in config:
            raise field_error(where, f"field {name!r} is missing")
        kind = dict[str, Any] if name in family.tables else dict[str, Any] | None
        tables[name] = read(config[name], kind, f"{where}.{name}")
    return tables


def _refused(where: str, why: str) -> GateError:
    return GateError(
        "VIDC-PORTABLE-SETTINGS",
        f"{where}: {why}",
        "finish the build with the vidc that began it, or begin it again with this one",
    )
