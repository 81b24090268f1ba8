"""From checkpoint files to a model's weights: read, renamed, checked, LoRA merged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidc.exporters.checkpoint.adapter_config import AdapterConfig, config_beside
from vidc.exporters.checkpoint.check import Disagreements, check_dtypes, check_finite, check_model
from vidc.exporters.checkpoint.layout import Layout, canonical
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.lora import Update, merge, read_updates
from vidc.exporters.checkpoint.read import checkpoint_files, read_checkpoint

_LORA_SECTIONS = ("generator_lora", "generator", "model", "state_dict")


@dataclass(frozen=True)
class Weights:
    """A model's weights.

    Attributes:
        tensors: by canonical name, in the checkpoint's dtypes.
        provenance: where they came from, as JSON values: names of files, layout, section, LoRA.
    """

    tensors: dict[str, LazyTensor]
    provenance: dict[str, Any]


def load_weights(
    checkpoint: Path,
    lora: Path | None,
    expected: Mapping[str, Sequence[int]],
    layouts: Sequence[Layout],
    disagreements: Disagreements,
) -> Weights:
    """The weights of a model from its checkpoint, with a LoRA merged into them.

    Every tensor is read once, to look for NaN and Inf; none is kept.

    Args:
        checkpoint: see ``read_checkpoint``.
        lora: the same, for a LoRA.
        expected: shapes by canonical name; the result has exactly these.
        layouts: of the model's parts.
        disagreements: lists settings that the checkpoint's shapes contradict.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: a code that starts with ``VIDC-CHECKPOINT-`` or ``VIDC-LORA-``.
    """
    base = read_checkpoint(checkpoint)
    tensors, layout = canonical(base.tensors, checkpoint, layouts)
    check_model(tensors, expected, layout, checkpoint, disagreements)
    check_dtypes(tensors, checkpoint)
    check_finite(tensors, checkpoint)
    provenance: dict[str, Any] = {
        "files": [file.name for file in base.files],
        "layout": layout.name,
        "section": base.section,
        "lora": None,
    }
    if lora is not None:
        adapter = read_checkpoint(lora, _LORA_SECTIONS)
        config = AdapterConfig.beside(lora)
        updates, names = read_updates(adapter.tensors, config, lora, layouts)
        factors = _factors(updates)
        check_dtypes(factors, lora)
        check_finite(factors, lora)
        tensors = merge(tensors, updates, lora)
        provenance["lora"] = {
            "files": [file.name for file in lora_files(lora)],
            "layout": names,
            "section": adapter.section,
            "modules": len(updates),
            "ranks": sorted({update.rank for update in updates.values()}),
            "scales": sorted({update.scale for update in updates.values()}),
        }
    return Weights(tensors, provenance)


def lora_files(lora: Path) -> tuple[Path, ...]:
    """Every file that ``load_weights`` reads of a LoRA; raises as ``checkpoint_files``."""
    config = config_beside(lora)
    return (*checkpoint_files(lora), *([] if config is None else [config]))


def _factors(updates: Mapping[str, Update]) -> dict[str, LazyTensor]:
    return {
        f"{path}.{part}": tensor
        for path, update in updates.items()
        for part, tensor in (("lora_A", update.down), ("lora_B", update.up))
    }
