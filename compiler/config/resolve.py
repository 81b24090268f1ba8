"""Resolved configuration: every setting at the value of the highest layer."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from vidc.compiler.config.backend import (
    BUILDERS,
    DEFAULT,
    choose_backend,
    choose_builder,
)
from vidc.compiler.config.environment import environment_layer
from vidc.compiler.config.layers import Layer, Setting, assignment_layer, file_layer
from vidc.compiler.config.precision import (
    asked_precision,
    instead,
    instead_of_bf16,
    require_built,
    require_exported,
    resolve_precision,
)
from vidc.compiler.config.presets import DEFAULT_PRESET, load_preset
from vidc.compiler.config.quantization import (
    QuantizationConfig,
    default_origin,
    high_layers,
    named_recipe,
    quantization,
    require_quantized_alone,
)
from vidc.compiler.config.schema import (
    AotiConfig,
    CalibrateConfig,
    CheckpointConfig,
    TensorRtConfig,
    ValidateConfig,
    build_tables,
)
from vidc.compiler.config.tables import (
    read_model,
    read_table,
)
from vidc.compiler.config.targets import AUTO, Target, find_target
from vidc.compiler.store.digest import flatten
from vidc.exporters.families import find_family
from vidc.exporters.families.family import Family


@dataclass(frozen=True)
class Settings:
    """A resolved configuration.

    Attributes:
        preset: name of the preset or of its file.
        family: family of the model.
        model: sizes, stream and sampler.
        precision: precision of each weights group; of the quantized group, that of the layers that
            are not quantized.
        target: target of the engines.
        backend: backend that builds them; unused if no engines are built.
        validate: rollout that validates the bundle.
        origins: where each value came from, by the dotted names of ``values``.
        quantization: quantization of the quantized group; None in 16 or 32 bits.
        checkpoint: settings of reading a checkpoint.
        tensorrt: settings of building engines with TensorRT.
        aoti: settings of building engines with AOTInductor.
        calibrate: settings of a calibration. They are not part of ``to_json``: a bundle depends on
            the calibration itself.
    """

    preset: str
    family: str
    model: Family
    precision: Mapping[str, str]
    target: Target
    backend: str
    validate: ValidateConfig
    origins: Mapping[str, str]
    quantization: QuantizationConfig | None = None
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    tensorrt: TensorRtConfig = field(default_factory=TensorRtConfig)
    aoti: AotiConfig = field(default_factory=AotiConfig)
    calibrate: CalibrateConfig = field(default_factory=CalibrateConfig)

    @property
    def asked_backend(self) -> Setting | None:
        """Returns the requested backend and its origin; None without a request."""
        origin = self.origins["backend"]
        return None if origin == DEFAULT else Setting(self.backend, origin)

    def quantized(self, group: str) -> QuantizationConfig | None:
        """Returns the quantization of a weights group; None if there is none."""
        return self.quantization if group == self.model.quantized_group else None

    def named_precision(self, group: str) -> str:
        """Returns the precision that names a group's engines: 8 bits if it is quantized."""
        quantized = self.quantized(group)
        return self.precision[group] if quantized is None else quantized.precision

    def to_json(self) -> dict[str, Any]:
        """Returns the configuration without origins as plain JSON values."""
        return {
            "preset": self.preset,
            "family": self.family,
            "target": self.target.to_json(),
            "backend": self.backend,
            "precision": dict(self.precision),
            "quantization": None if self.quantization is None else self.quantization.to_json(),
            **self.model.to_json(),
            "checkpoint": self.checkpoint.to_json(),
            "validate": self.validate.to_json(),
            "tensorrt": asdict(self.tensorrt),
            "aoti": self.aoti.to_json(),
        }

    def values(self) -> dict[str, Any]:
        """Returns every setting by dotted name, as ``--plan`` shows it."""
        document = self.to_json()
        for name in ("target", *self.model.read_off):
            del document[name]
        rules = document.pop("quantization")
        if rules is not None:
            shown = {name: rules[name] for name in ("precision", "recipe")}
            document["quantization"] = shown
        return flatten({"gpu": self.target.name, **document})


def resolve(
    preset: str | None = None,
    *,
    gpu: str | None = None,
    precision: str | None = None,
    recipe: str | None = None,
    backend: str | None = None,
    ema: bool | None = None,
    assignments: Sequence[str] = (),
    config: Path | None = None,
    environ: Mapping[str, str],
    engines: bool = True,
) -> Settings:
    """Resolves a build's settings from flags, environment, ``--config``, preset and defaults.

    The first of these that sets a value decides.

    Args:
        preset: a name or a path to a TOML file; ``longlive-1.3b`` by default.
        gpu: ``--gpu``: a target or ``auto``.
        precision: ``--precision``, for every weights group that ``--set`` does not name.
        recipe: ``--recipe``: recipe of an 8-bit precision, instead of the preset's or the default.
        backend: ``--backend``.
        ema: ``--ema`` or ``--no-ema``.
        assignments: ``--set key=value``, with the precedence of flags; a dedicated flag wins.
        config: the file of ``--config``.
        environ: the environment, whose ``VIDC_`` variables are read.
        engines: True if engines are built; False to export graphs, which need no backend.

    Raises:
        UsageError: an unknown or unfit preset, setting, target, precision or backend, with the
            nearest known name.
        UnavailableError: ``VIDC-TARGET-AUTO`` for an unknown GPU, ``VIDC-BACKEND-TARGET`` for a
            target that no backend builds for; ``VIDC-TARGET-PRECISION``,
            ``VIDC-BACKEND-PRECISION`` or ``VIDC-EXPORT-PRECISION`` for a precision that the
            target, the backend or the export does not have.
    """
    chosen = load_preset(preset or DEFAULT_PRESET)
    family = find_family(chosen.family)
    flags = {
        "gpu": Setting(gpu, "--gpu"),
        "precision.default": Setting(precision, "--precision"),
        "recipe": Setting(recipe, "--recipe"),
        "backend": Setting(backend, "--backend"),
        "checkpoint.ema": Setting(ema, "--ema" if ema else "--no-ema"),
    }
    layers: list[Layer] = [
        chosen.layer,
        file_layer(config, family) if config else {},
        environment_layer(environ),
        assignment_layer(assignments, family)
        | {name: flag for name, flag in flags.items() if flag.value is not None},
    ]
    merged: dict[str, Setting] = {}
    for layer in layers:
        merged |= layer

    model, validate = read_model(family, merged), read_table(ValidateConfig, merged, "validate")
    gpu_setting = merged.get("gpu", Setting(AUTO, DEFAULT))
    target = find_target(str(gpu_setting.value), gpu_setting.origin)
    asked = merged.get("backend")
    chosen_backend = (
        choose_builder(asked, target, gpu_setting) if engines else choose_backend(asked)
    )
    quantized, origins = None, dict[str, str]()
    if engines:
        quantized, origins = _quantized(layers, chosen_backend.value, target, family)
        built = BUILDERS[chosen_backend.value]().precisions(target)
        high = layers
        if quantized is not None:
            high = high_layers(layers, instead([p for p in target.precisions if p in built]))
        precisions = resolve_precision(high, target, family)
        precisions = instead_of_bf16(precisions, layers, model.parts, target, built)
        require_built(precisions.values(), chosen_backend.value, target)
    else:
        precisions = resolve_precision(layers, target, family)
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
            **origins,
            **_table_origins(merged, family),
        },
        quantization=quantized,
        checkpoint=read_table(CheckpointConfig, merged, "checkpoint"),
        tensorrt=read_table(TensorRtConfig, merged, "tensorrt"),
        aoti=read_table(AotiConfig, merged, "aoti"),
        calibrate=read_table(CalibrateConfig, merged, "calibrate"),
    )


def _quantized(
    layers: Sequence[Layer], backend: str, target: Target, family: type[Family]
) -> tuple[QuantizationConfig | None, dict[str, str]]:
    """Returns the quantization that an 8-bit precision asks for, and its settings' origins."""
    asked = asked_precision(layers, target, family.quantized_group)
    require_built([asked], backend, target)
    require_quantized_alone(layers, target, family)
    recipe = named_recipe(layers, asked)
    quantized = quantization(asked, recipe, target, family)
    if quantized is None:
        return None, {}
    return quantized, {
        "quantization.precision": asked.origin,
        "quantization.recipe": default_origin(target, family) if recipe is None else recipe.origin,
    }


def _table_origins(merged: Layer, family: type[Family]) -> dict[str, str]:
    tables = build_tables(family).items()
    known = [f"{table}.{field.name}" for table, kind in tables for field in fields(kind)]
    return {name: merged[name].origin if name in merged else DEFAULT for name in known}
