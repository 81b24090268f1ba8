"""Settings of a LoRA beside its tensors: in its file's header, or in ``adapter_config.json``."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar

from vidc.exporters.checkpoint.safetensors_file import read_metadata
from vidc.plugins.errors import BuildError
from vidc.plugins.untrusted_files import require_regular

T = TypeVar("T")

CONFIG = "adapter_config.json"
_DIFFUSERS = "lora_adapter_metadata"
"""Header entry in which diffusers keeps PEFT's config as JSON."""
_ALPHA = ("lora_alpha", "network_alpha", "ss_network_alpha", "alpha")
_RANK = ("r", "rank", "lora_rank", "network_dim", "ss_network_dim")
_UNSUPPORTED = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "alpha_pattern",
    "fan_in_fan_out",
    "layer_replication",
)
_OFF = (None, "", "None", "none", "null", "False", "false", "0", "{}", "[]")
"""Values of an unused setting; in a file's header, all values are strings."""
_KEEPS_BASE = (None, True, False, "True", "False", "gaussian", "eva", "orthogonal")
"""Initializations that leave the base's weights unchanged; all others subtract from them."""
_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin")


@dataclass(frozen=True)
class AdapterConfig:
    """Settings of a LoRA that decide how it is merged; None if unknown."""

    alpha: float | None = None
    rank: int | None = None
    source: str = ""

    @classmethod
    def of(cls, lora: Path, file: Path) -> Self:
        """Reads the header of a LoRA's file and the config of ``config_beside``.

        Args:
            lora: the file, or the folder that holds it.
            file: the file with its tensors.

        Raises:
            BuildError: ``VIDC-LORA-KIND`` for settings that change what a merge is,
                ``VIDC-LORA-FORMAT`` for settings that cannot be read or contradict each other.
        """
        path = config_beside(lora)
        header = _read(f"header of {file}", lambda source: cls._header(file, source))
        beside = _read(str(path), lambda source: cls._file(path, source))
        for name in ("alpha", "rank"):
            one, other = getattr(header, name), getattr(beside, name)
            if None not in (one, other) and one != other:
                _refuse(f"{header.source} says {name} {one}, {beside.source} says {other}")
        alpha = beside.alpha if header.alpha is None else header.alpha
        rank = beside.rank if header.rank is None else header.rank
        return cls(alpha, rank, beside.source if header.rank is None else header.source)

    @classmethod
    def _file(cls, path: Path | None, source: str) -> Self:
        if path is None:
            return cls()
        require_regular(path)
        config = json.loads(path.read_bytes())
        return cls._from(config, source, float(config["lora_alpha"]), config["r"])

    @classmethod
    def _header(cls, file: Path, source: str) -> Self:
        header = dict(read_metadata(file)) if file.suffix == ".safetensors" else {}
        config: dict[str, Any] = header | json.loads(header.get(_DIFFUSERS, "{}"))
        # The names of diffusers' pipelines start with the part that the adapter is for.
        config = {name.removeprefix("transformer."): value for name, value in config.items()}
        return cls._from(config, source, *(_only(config, names) for names in (_ALPHA, _RANK)))

    @classmethod
    def _from(cls, config: Mapping[str, Any], source: str, alpha: object, rank: object) -> Self:
        _refuse_unsupported(source, config)
        # kohya's resizing gives modules different ranks, and writes a word for the rank: "Dynamic".
        several = config.get("rank_pattern") not in (*_OFF, {}) or not str(rank).isdigit()
        found = None if alpha is None else float(str(alpha))
        if found is not None and not math.isfinite(found):
            raise ValueError(f"lora_alpha is {alpha}")
        return cls(found, None if several else int(str(rank)), source)

    def alpha_for(self, module: str, rank: int) -> float:
        """Returns alpha for a module with matrices of this rank; the rank itself if unknown.

        Raises:
            BuildError: ``VIDC-LORA-FORMAT`` if the settings were written for another rank.
        """
        if self.rank is not None and self.rank != rank:
            _refuse(f"{self.source} says rank {self.rank}, but {module} has rank {rank}")
        return rank if self.alpha is None else self.alpha


def config_beside(lora: Path) -> Path | None:
    """The config that PEFT wrote for a LoRA, in its folder, if there is one.

    It belongs to ``adapter_model.*``. In a folder without that file, it belongs to the only file
    of weights.

    Raises:
        BuildError: ``VIDC-LORA-FORMAT``, it lies beside several files, none of them PEFT's.
    """
    folder = lora if lora.is_dir() else lora.parent
    path = folder / CONFIG
    if not path.exists():
        return None
    files = [file for file in sorted(folder.iterdir()) if file.suffix in _WEIGHTS]
    own = [file for file in files if file.stem == "adapter_model"]
    if own:
        return path if lora.is_dir() or lora in own else None
    if len(files) > 1:
        shown = ", ".join(file.name for file in files[:4])
        _refuse(f"{path} lies beside {len(files)} files, and nothing says whose it is: {shown}")
    return path


def _read(source: str, read: Callable[[str], T]) -> T:
    try:
        return read(source)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BuildError(
            "VIDC-LORA-FORMAT",
            f"{source} does not hold a LoRA's settings: {type(error).__name__}: {error}",
            "restore the file as it was saved; without settings, alpha is taken to be the rank",
        ) from error


def _only(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    """The one value that a header has under these names, or None."""
    found = {name: config[name] for name in names if config.get(name) not in _OFF}
    if len(set(map(str, found.values()))) > 1:
        raise ValueError(", ".join(f"{name} is {value}" for name, value in found.items()))
    return next(iter(found.values()), None)


def _refuse(what: str) -> NoReturn:
    raise BuildError(
        "VIDC-LORA-FORMAT", what, f"keep each LoRA in a folder of its own, with the {CONFIG} of it"
    )


def _refuse_unsupported(source: str, config: Mapping[str, Any]) -> None:
    settings = {name: config.get(name) for name in _UNSUPPORTED}
    wrong = [f"{name} = {value}" for name, value in settings.items() if value and value not in _OFF]
    if config.get("peft_type", "LORA") not in ("LORA", "PeftType.LORA"):
        wrong.append(f"peft_type = {config['peft_type']}")
    if config.get("init_lora_weights") not in _KEEPS_BASE:
        wrong.append(f"init_lora_weights = {config['init_lora_weights']}")
    if wrong:
        raise BuildError(
            "VIDC-LORA-KIND",
            f"{source} has {', '.join(wrong)}, which vidc does not merge",
            "merge it with PEFT's merge_and_unload and give the result as --checkpoint",
        )
