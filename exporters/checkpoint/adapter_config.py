"""PEFT's ``adapter_config.json``, which may lie beside a LoRA."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from vidc.plugins.errors import BuildError

_UNSUPPORTED = (
    "use_rslora",
    "use_dora",
    "use_qalora",
    "use_bdlora",
    "alpha_pattern",
    "fan_in_fan_out",
    "layer_replication",
)
_KEEPS_BASE = (None, True, False, "gaussian", "eva", "orthogonal")
"""Initializations that leave the base's weights as they are; the others subtract from them."""


@dataclass(frozen=True)
class AdapterConfig:
    """The settings of a LoRA that decide how it is merged; None where nothing says."""

    alpha: float | None = None
    rank: int | None = None
    path: Path | None = None

    @classmethod
    def beside(cls, lora: Path) -> Self:
        """The config of ``config_beside``; without one nothing is said.

        Raises:
            BuildError: ``VIDC-LORA-KIND`` for settings that change what a merge is,
                ``VIDC-LORA-FORMAT`` for a file that is no such config.
        """
        path = config_beside(lora)
        if path is None:
            return cls()
        try:
            config = json.loads(path.read_bytes())
            _refuse_unsupported(path, config)
            rank = None if config.get("rank_pattern") else config["r"]
            alpha = float(config["lora_alpha"])
            if not math.isfinite(alpha):
                raise ValueError(f"lora_alpha is {alpha}")
            return cls(alpha, rank, path)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BuildError(
                "VIDC-LORA-FORMAT",
                f"{path} is not a LoRA's config: {type(error).__name__}: {error}",
                "restore the file that PEFT wrote; without it, alpha is taken to be the rank",
            ) from error

    def alpha_for(self, module: str, rank: int) -> float:
        """Alpha of a module whose matrices have this rank; the rank itself where nothing says.

        Raises:
            BuildError: ``VIDC-LORA-FORMAT`` if the config was written for another rank.
        """
        if self.rank is not None and self.rank != rank:
            raise BuildError(
                "VIDC-LORA-FORMAT",
                f"{self.path} says rank {self.rank}, but {module} has rank {rank}",
                "keep the LoRA beside its own config, or away from any",
            )
        return rank if self.alpha is None else self.alpha


def config_beside(lora: Path) -> Path | None:
    """The file in the folder of a LoRA file, or in the LoRA's folder, if there is one."""
    path = (lora if lora.is_dir() else lora.parent) / "adapter_config.json"
    return path if path.is_file() else None


def _refuse_unsupported(path: Path, config: dict[str, Any]) -> None:
    wrong = [f"{name} = {config[name]}" for name in _UNSUPPORTED if config.get(name)]
    if config.get("peft_type", "LORA") != "LORA":
        wrong.append(f"peft_type = {config['peft_type']}")
    if config.get("init_lora_weights") not in _KEEPS_BASE:
        wrong.append(f"init_lora_weights = {config['init_lora_weights']}")
    if wrong:
        raise BuildError(
            "VIDC-LORA-KIND",
            f"{path} has {', '.join(wrong)}, which vidc does not merge",
            "merge it with PEFT's merge_and_unload and give the result as --checkpoint",
        )
