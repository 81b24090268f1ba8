"""Presets: a family with its sizes, by name or from a TOML file."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from vidc.compiler.config.layers import Layer, table_layer
from vidc.compiler.config.schema import (
    RECIPE,
    AotiConfig,
    CalibrateConfig,
    CheckpointConfig,
    TensorRtConfig,
    ValidateConfig,
)
from vidc.compiler.config.tables import (
    nest,
    read_model,
    read_table,
)
from vidc.compiler.config.toml import read_toml, shipped
from vidc.exporters.families import family_names, find_family
from vidc.exporters.families.family import Family
from vidc.plugins.errors import UsageError, nearest

DEFAULT_PRESET = "longlive-1.3b"
HEAD = ("description", "family", "extends")
"""Keys of a preset that are not settings."""


@dataclass(frozen=True)
class Preset:
    """A preset and all that it inherits through ``extends``, merged to one layer."""

    name: str
    description: str
    family: str
    layer: Layer

    @property
    def model(self) -> Family:
        """Returns the model that the preset describes; raises as ``read_model``."""
        return read_model(find_family(self.family), self.layer)


def preset_names() -> tuple[str, ...]:
    """Returns the names of the shipped presets."""
    return tuple(shipped("presets"))


def load_preset(name: str) -> Preset:
    """Loads the preset of this name, or from the TOML file at this path.

    Raises:
        UsageError: ``VIDC-CONFIG-PRESET`` for an unknown name or an incomplete preset,
            ``VIDC-CONFIG-FILE`` for an unreadable file, ``VIDC-CONFIG-SETTING`` for a setting
            that does not exist.
    """
    table, tables, display = _read(name, Path(), ())
    for key in ("description", "family"):
        if not isinstance(table.get(key), str):
            raise UsageError(
                "VIDC-CONFIG-PRESET",
                f"preset {display} has no {key}",
                f'add {key} = "..." at its top, or extends = "{DEFAULT_PRESET}"',
            )
    if table["family"] not in family_names():
        raise UsageError(
            "VIDC-CONFIG-PRESET",
            f"preset {display}: no family {table['family']!r}",
            nearest(table["family"], family_names()),
        )
    family = find_family(table["family"])
    layer: Layer = {}
    for settings, origin in tables:
        layer = {**layer, **table_layer(settings, origin, family)}
    return Preset(display, table["description"], table["family"], layer)


def preset_document(preset: Preset) -> dict[str, Any]:
    """Returns a preset's tables with every default, as in a file without ``extends``.

    Raises:
        UsageError: as ``read_model``.
    """
    model = preset.model.to_json()
    # TOML has no null: None is left out.
    found = asdict(read_table(TensorRtConfig, preset.layer, "tensorrt"))
    tensorrt = {name: value for name, value in found.items() if value is not None}
    prompts = list(read_table(CalibrateConfig, preset.layer, "calibrate").prompts)
    return {
        "description": preset.description,
        "family": preset.family,
        **({RECIPE: preset.layer[RECIPE].value} if RECIPE in preset.layer else {}),
        **{name: model[name] for name in find_family(preset.family).tables},
        "checkpoint": read_table(CheckpointConfig, preset.layer, "checkpoint").to_json(),
        "validate": read_table(ValidateConfig, preset.layer, "validate").to_json(),
        **({"tensorrt": tensorrt} if tensorrt else {}),
        "aoti": read_table(AotiConfig, preset.layer, "aoti").to_json(),
        **({"calibrate": {"prompts": prompts}} if prompts else {}),
        "precision": nest(preset.layer).get("precision", {}),
    }


Tables = list[tuple[dict[str, Any], str]]
"""Tables of settings and where each came from, lowest precedence first."""


def _read(name: str, folder: Path, chain: tuple[str, ...]) -> tuple[Mapping[str, Any], Tables, str]:
    """Returns a preset's ``HEAD`` keys, its tables after the inherited ones, and its name."""
    file, display = _locate(name, folder)
    if str(file) in chain:
        raise UsageError(
            "VIDC-CONFIG-PRESET",
            f"preset {display} extends itself: {' -> '.join((*chain, str(file)))}",
            "remove one of the extends",
        )
    table = read_toml(file)
    head: Mapping[str, Any] = {key: table.pop(key) for key in HEAD if key in table}
    tables = [(table, f"preset {display}")]
    if "extends" in head:
        beside = file.parent if isinstance(file, Path) else Path()
        inherited, below, _ = _read(str(head["extends"]), beside, (*chain, str(file)))
        head, tables = {**inherited, **head}, [*below, *tables]
    return head, tables, display


def _locate(name: str, folder: Path) -> tuple[Path | Traversable, str]:
    if name.endswith(".toml"):
        file = folder / name
        return file, file.stem
    known = shipped("presets")
    if name not in known:
        raise UsageError("VIDC-CONFIG-PRESET", f"no preset {name!r}", nearest(name, known))
    return known[name], name
