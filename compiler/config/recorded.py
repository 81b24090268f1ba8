"""Settings recorded by a build on another machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from vidc.compiler.config.backend import choose_builder
from vidc.compiler.config.layers import Setting
from vidc.compiler.config.precision import require_built
from vidc.compiler.config.presets import FAMILIES
from vidc.compiler.config.quantization import QuantizationConfig
from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.schema import WEIGHTS_GROUPS
from vidc.compiler.config.tables import model_from_json, read_tensorrt, read_validate
from vidc.compiler.config.targets import targets
from vidc.plugins.errors import GateError, VidcError
from vidc.runtime.document import check_path
from vidc.runtime.strict import read


@dataclass(frozen=True)
class _Recorded:
    """Document of ``Settings.to_json``."""

    preset: str
    family: str
    target: dict[str, Any]
    backend: str
    precision: dict[str, str]
    quantization: dict[str, Any] | None
    model: dict[str, Any]
    vae: dict[str, Any]
    stream: dict[str, Any]
    sampler: dict[str, Any]
    validate: dict[str, Any]
    tensorrt: dict[str, Any]
    text_encoder: dict[str, Any] | None

    def __post_init__(self) -> None:
        check_path(self.preset)
        if PurePosixPath(self.preset).name != self.preset:
            raise ValueError(f"preset {self.preset!r} is a path, not a name")
        if self.family not in FAMILIES:
            raise ValueError(f"no family {self.family!r}")
        if self.precision.keys() != set(WEIGHTS_GROUPS):
            raise ValueError(f"precision is not of {', '.join(WEIGHTS_GROUPS)}")
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
            ``VIDC-PORTABLE-SETTINGS``, this vidc does not accept what they say.
    """
    recorded: _Recorded = read(dict(config), _Recorded, where)
    target = targets()[recorded.target["name"]]
    precisions = {group: Setting(value, where) for group, value in recorded.precision.items()}
    try:
        backend = choose_builder(
            Setting(recorded.backend, where), target, Setting(target.name, where)
        )
        require_built(precisions, backend.value, target)
        settings = Settings(
            preset=recorded.preset,
            family=recorded.family,
            model=model_from_json(config),
            precision=dict(recorded.precision),
            target=target,
            backend=backend.value,
            validate=read_validate(
                {f"validate.{name}": Setting(v, where) for name, v in recorded.validate.items()}
            ),
            origins=dict(origins),
            quantization=None
            if recorded.quantization is None
            else QuantizationConfig.from_json(recorded.quantization),
            tensorrt=read_tensorrt(
                {
                    f"tensorrt.{name}": Setting(v, where)
                    for name, v in recorded.tensorrt.items()
                    if v is not None
                }
            ),
        )
    except VidcError as error:
        raise _refused(where, error.message) from error
    if settings.to_json() != config:
        raise _refused(where, "they are not complete")
    return settings


def _refused(where: str, why: str) -> GateError:
    return GateError(
        "VIDC-PORTABLE-SETTINGS",
        f"{where}: {why}",
        "finish the build with the vidc that began it, or begin it again with this one",
    )
