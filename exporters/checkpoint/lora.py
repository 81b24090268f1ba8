"""LoRA: reading the low-rank updates of a file, and adding them to a model's weights."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from vidc.exporters.checkpoint.adapter_config import AdapterConfig
from vidc.exporters.checkpoint.check import some
from vidc.exporters.checkpoint.layout import Layout, canonical
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError

_PART = re.compile(r"(?P<path>.+)\.lora_(?P<part>A|B|down|up)(?:\.[^.]+)?\.weight")
_ALPHA = re.compile(r"(?P<path>.+)\.(?P<part>alpha)")
_NAMES = {"A": "down", "B": "up"}


@dataclass(frozen=True)
class Update:
    """The update of one module's weight: ``scale * up @ down``.

    Shapes are ``down [rank, in]`` and ``up [out, rank]``; ``scale`` is alpha / rank.
    """

    down: LazyTensor
    up: LazyTensor
    scale: float

    @property
    def rank(self) -> int:
        """Rows of ``down``."""
        return self.down.shape[0]

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of ``up @ down``."""
        return self.up.shape[0], self.down.shape[1]


def read_updates(
    tensors: Mapping[str, LazyTensor],
    config: AdapterConfig,
    source: Path,
    layouts: Sequence[Layout],
) -> tuple[dict[str, Update], str]:
    """The updates of a LoRA file by canonical module path, and the layout of its names.

    Names are PEFT's (``<module>.lora_A.weight``, with an adapter's name before ``weight`` or not)
    or kohya's (``lora_down``, ``lora_up``, ``alpha``). A module's own ``alpha`` goes before the
    config's; without either, alpha is the rank.

    Raises:
        BuildError: ``VIDC-LORA-KIND`` for DoRA, ``VIDC-LORA-FORMAT`` for anything else that is
            not a pair of matrices for each module.
    """
    modules: dict[str, dict[str, LazyTensor]] = defaultdict(dict)
    other = []
    for name, tensor in tensors.items():
        match = _PART.fullmatch(name) or _ALPHA.fullmatch(name)
        if match is None:
            other.append(name)
            continue
        part = _NAMES.get(match["part"], match["part"])
        if part in modules[match["path"]]:
            raise _malformed(source, f"{match['path']} has several adapters")
        modules[match["path"]][part] = tensor
    _refuse_other(source, other, has_updates=bool(modules))
    updates = {path: _update(path, parts, config, source) for path, parts in modules.items()}
    named, layout = canonical(updates, source, layouts)
    return named, layout.name


def _refuse_other(source: Path, names: list[str], *, has_updates: bool) -> None:
    if any("lora_magnitude_vector" in name for name in names):
        raise BuildError(
            "VIDC-LORA-KIND",
            f"{source} is a DoRA (lora_magnitude_vector), which vidc does not merge",
            "merge it with PEFT's merge_and_unload and give the result as --checkpoint",
        )
    if not has_updates:
        raise _malformed(source, f"no LoRA tensors, only {some(names)}")
    if names:
        raise _malformed(source, f"{len(names)} tensors that no LoRA has: {some(names)}")


def _update(
    path: str, parts: Mapping[str, LazyTensor], config: AdapterConfig, source: Path
) -> Update:
    if "up" not in parts or "down" not in parts:
        present = ", ".join(sorted(parts))
        raise _malformed(source, f"{path} has only {present} of the pair down (A) and up (B)")
    down, up = parts["down"], parts["up"]
    if (
        len(down.shape) != 2
        or len(up.shape) != 2
        or down.shape[0] != up.shape[1]
        or not up.shape[1]
    ):
        raise _malformed(
            source, f"{path} has A {list(down.shape)} and B {list(up.shape)}, which do not multiply"
        )
    rank = down.shape[0]
    if "alpha" in parts:
        alpha = _scalar(parts["alpha"].load(), path, source)
    else:
        alpha = config.alpha_for(path, rank)
    return Update(down, up, alpha / rank)


def _scalar(value: Tensor, path: str, source: Path) -> float:
    if value.numel() != 1 or not math.isfinite(value.item()):
        raise _malformed(source, f"{path}.alpha is not one finite number")
    return float(value.item())


def _malformed(source: Path, what: str) -> BuildError:
    return BuildError(
        "VIDC-LORA-FORMAT",
        f"{source} is not a LoRA that can be merged: {what}",
        "give a LoRA in PEFT's or kohya's names, one adapter a file, linear layers only",
    )


def merge(
    base: Mapping[str, LazyTensor], updates: Mapping[str, Update], source: Path
) -> dict[str, LazyTensor]:
    """The base's tensors with updates added when a tensor is loaded.

    The sum is computed in float32 and returned in the base's dtype.

    Raises:
        BuildError: ``VIDC-LORA-MISMATCH`` for a module that the base lacks or of another shape.
    """
    absent = [path for path in updates if f"{path}.weight" not in base]
    wrong = [
        f"{path} is {list(base[f'{path}.weight'].shape)}, its update {list(update.shape)}"
        for path, update in updates.items()
        if path not in absent and base[f"{path}.weight"].shape != update.shape
    ]
    if absent or wrong:
        raise BuildError(
            "VIDC-LORA-MISMATCH",
            f"{source} was made for another model: {len(absent)} of its {len(updates)} modules do "
            f"not exist here ({some(absent)}), {len(wrong)} have other sizes ({some(wrong)})",
            "give the LoRA that was trained on this checkpoint",
        )
    merged = dict(base)
    for path, update in updates.items():
        weight = base[f"{path}.weight"]
        merged[f"{path}.weight"] = replace(weight, load=partial(_sum, weight, update))
    return merged


def _sum(weight: LazyTensor, update: Update) -> Tensor:
    delta = update.up.load().float() @ update.down.load().float()
    return delta.mul_(update.scale).add_(weight.load().float()).to(weight.dtype)
