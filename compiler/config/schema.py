"""Known settings by dotted name, and the refusal of unknown ones."""

from collections.abc import Collection
from dataclasses import dataclass, fields

from vidc.compiler.config.targets import targets
from vidc.exporters.families.family import Family
from vidc.exporters.table import Table
from vidc.plugins.errors import UsageError, nearest

EIGHT_BITS = ("fp8", "int8")
PRECISIONS = ("fp32", "fp16", "bf16", *EIGHT_BITS)
RECIPE = "recipe"
"""Name of the setting for an 8-bit precision's recipe, in place of the default recipe."""
_MAX_WORKSPACE_GB = 1024
CALIBRATION_PROMPTS = 32
"""Default number of prompts of a calibration."""
LEVELS = ("auto", "rollout", "component")


@dataclass(frozen=True)
class ValidateConfig(Table):
    """Settings of a validation.

    Attributes:
        blocks: number of blocks of the rollout.
        switch_after: number of blocks before the prompt switch.
        prompts: two texts, before and after the switch, for a model with a text encoder.
        level: ``rollout`` follows errors from block to block; ``component`` runs two blocks and
            compares each call with PyTorch by itself; ``auto`` is ``rollout`` unless a CPU would
            take long.
        free_gates: True to gate the free rollout, where each block continues the engine's own
            blocks, of trained weights in 8 bits too. For models whose prompts determine the video;
            in others, a rounding error can lead to another video that is as good.
    """

    blocks: int = 8
    switch_after: int = 4
    prompts: tuple[str, ...] = (
        "A red fox trots along a snowy forest path at dawn, its breath visible in the cold air.",
        "The fox stops, turns its head and looks straight into the camera.",
    )
    level: str = "auto"
    free_gates: bool = False

    def __post_init__(self) -> None:
        self.require(
            0 < self.switch_after < self.blocks,
            f"validate.switch_after = {self.switch_after} does not lie inside the "
            f"{self.blocks} blocks of validate.blocks",
            f"set it between 1 and {self.blocks - 1}",
        )
        self.require(
            len(self.prompts) == 2 and all(map(str.strip, self.prompts)),
            f"validate.prompts = {list(self.prompts)} are not two texts",
            "give one for the blocks before the prompt switch, and one for those behind it",
        )
        if self.level not in LEVELS:
            raise UsageError(
                "VIDC-CONFIG-SETTING",
                f"validate.level = {self.level!r} is no level of validation",
                nearest(self.level, LEVELS),
            )


@dataclass(frozen=True)
class CheckpointConfig(Table):
    """Settings of reading a checkpoint.

    Attributes:
        ema: True to load the moving average (EMA) of the weights from a file that has both it and
            the trained weights.
    """

    ema: bool = False


@dataclass(frozen=True)
class CalibrateConfig(Table):
    """Defaults of ``vidc calibrate``.

    Attributes:
        prompts: texts in the style the model was trained on; if empty, vidc's own are used.
    """

    prompts: tuple[str, ...] = ()


PLUGINS_AUTO, PLUGINS_ALL, PLUGINS_NONE = _PLUGINS = ("auto", "all", "none")
"""Values of ``tensorrt.plugins``."""


@dataclass(frozen=True)
class TensorRtConfig(Table):
    """Settings of TensorRT builds.

    Attributes:
        workspace_gb: limit of a layer's workspace on the GPU in 10^9 bytes, beside weights and
            activations; None is all that the target has.
        hardware_compatible: True for engines that run on GPUs of other compute capabilities too.
        version_compatible: True for engines that run with later versions of TensorRT too.
        plugins: operators that vidc's plugins compute: ``auto``, those of rings that TensorRT's own
            layers cannot update in place; ``all``, every one that has a plugin; ``none``.
    """

    workspace_gb: float | None = None
    hardware_compatible: bool = False
    version_compatible: bool = False
    plugins: str = PLUGINS_AUTO

    def __post_init__(self) -> None:
        limit = self.workspace_gb
        self.require(
            limit is None or 0 < limit <= _MAX_WORKSPACE_GB,
            f"tensorrt.workspace_gb = {limit} is not above 0 and at most {_MAX_WORKSPACE_GB}",
            "set it to what one layer may take of the GPU's memory, such as 2",
        )
        self.require(
            self.plugins in _PLUGINS,
            f"tensorrt.plugins = {self.plugins} is none of {', '.join(_PLUGINS)}",
            "set it to none for standard operators alone",
        )

    @property
    def workspace_bytes(self) -> int | None:
        """``workspace_gb`` in bytes."""
        return None if self.workspace_gb is None else int(self.workspace_gb * 10**9)


@dataclass(frozen=True)
class AotiConfig(Table):
    """Settings of AOTInductor builds.

    Attributes:
        measure: True to measure the forms, or implementations, of each convolution on the GPU and
            take the fastest; False chooses by a rule.
    """

    measure: bool = True


def build_tables(family: type[Family]) -> dict[str, type[Table]]:
    """Returns the tables of settings that a bundle of a family has."""
    return {
        **family.tables,
        "checkpoint": CheckpointConfig,
        "validate": ValidateConfig,
        "tensorrt": TensorRtConfig,
        "aoti": AotiConfig,
    }


def _names_under(path: tuple[str, ...], family: type[Family]) -> Collection[str]:
    """Returns the names that may follow ``path``; none if ``path`` is a setting or unknown."""
    tables = {**build_tables(family), "calibrate": CalibrateConfig}
    match path:
        case ():
            return (*tables, "precision", "gpu", "backend", RECIPE)
        case ("precision",):
            return ("default", *family.groups, *targets())
        case ("precision", name) if name in targets():
            return ("default", *family.groups)
        case (name,) if name in tables:
            return tuple(field.name for field in fields(tables[name]))
    return ()


def require_setting(name: str, origin: str, family: type[Family]) -> None:
    """Refuses a dotted name that is no setting of a family's models.

    Raises:
        UsageError: ``VIDC-CONFIG-SETTING``, with the nearest name.
    """
    parts = tuple(name.split("."))
    for depth, part in enumerate(parts):
        known = _names_under(parts[:depth], family)
        if part not in known:
            raise UsageError(
                "VIDC-CONFIG-SETTING",
                f"no setting {name!r} ({origin})",
                _hint(part, known, depth, family),
            )
    if below := _names_under(parts, family):
        raise UsageError(
            "VIDC-CONFIG-SETTING",
            f"{name!r} is a table, not a setting ({origin})",
            f"set one of: {', '.join(f'{name}.{child}' for child in sorted(below))}",
        )


def _hint(part: str, known: Collection[str], depth: int, family: type[Family]) -> str:
    if not known:
        return "it goes deeper than the settings do"
    tables = (*build_tables(family), "calibrate")
    homes = [f"{table}.{part}" for table in tables if part in _names_under((table,), family)]
    if depth == 0 and homes:
        return f"did you mean {' or '.join(homes)}?"
    return nearest(part, known)
