"""From checkpoint files to a model's weights: read, renamed, checked, LoRA merged."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vidc.exporters.checkpoint.adapter_config import AdapterConfig, config_beside
from vidc.exporters.checkpoint.check import Disagreements, check_dtypes, check_finite, check_model
from vidc.exporters.checkpoint.layout import Layout, canonical, own_part, with_prefixes
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.lora import Updates, is_alpha, merge, read_updates
from vidc.exporters.checkpoint.read import checkpoint_files, read_checkpoint, read_model
from vidc.exporters.checkpoint.scaled import dequantize

NO_PREFIXES: Mapping[str, str] = MappingProxyType({})
_LORA_SECTIONS = ("generator_lora", "generator", "model", "state_dict")


@dataclass(frozen=True)
class Opened:
    """A model's checkpoint under canonical names; nothing is checked yet.

    Attributes:
        tensors: by canonical name; those of scaled FP8 are dequantized when they are loaded.
        layout: layout that the checkpoint has.
        provenance: as in ``Weights``.
    """

    tensors: dict[str, LazyTensor]
    layout: Layout
    provenance: dict[str, Any]


@dataclass(frozen=True)
class Weights:
    """A model's weights.

    Attributes:
        tensors: by canonical name, in the checkpoint's dtypes.
        provenance: where they came from, as JSON values: names of files, layout, section, LoRAs.
    """

    tensors: dict[str, LazyTensor]
    provenance: dict[str, Any]


def open_model(
    checkpoint: Path,
    expected: Collection[str],
    layouts: Sequence[Layout],
    *,
    ema: bool = False,
    prefixes: Mapping[str, str] = NO_PREFIXES,
) -> Opened:
    """Opens a checkpoint and gives its tensors canonical names; reads no weights.

    Args:
        checkpoint: see ``read_checkpoint``. Of a whole pipeline in one file, one part is taken.
        expected: canonical names by which to tell that part.
        layouts: of the model's parts.
        ema: see ``read_model``.
        prefixes: prefixes of the part's tensors in a file of a whole pipeline, with their
            replacements.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: a code that starts with ``VIDC-CHECKPOINT-``.
    """
    base = read_model(checkpoint, ema=ema)
    plain, dequantized = dequantize(base.tensors, checkpoint)
    prefixed = with_prefixes(plain, prefixes)
    own, part = (prefixed, "") if prefixed else own_part(plain, expected, layouts)
    tensors, layout = canonical(own, checkpoint, layouts)
    provenance: dict[str, Any] = {
        "files": [file.name for file in base.files],
        "layout": layout.name,
        "section": base.section,
        **({"part": part} if part else {}),
        **({"dequantized": dequantized} if dequantized else {}),
    }
    return Opened(tensors, layout, provenance)


def load_weights(
    checkpoint: Path,
    loras: Sequence[Path],
    expected: Mapping[str, Sequence[int]],
    layouts: Sequence[Layout],
    disagreements: Disagreements,
    *,
    ema: bool = False,
    prefixes: Mapping[str, str] = NO_PREFIXES,
    adapt: Callable[[dict[str, LazyTensor], Layout], dict[str, LazyTensor]] = lambda t, _: t,
    ignored: Collection[str] = (),
) -> Weights:
    """The weights of a model from its checkpoint, with LoRAs merged into them.

    Every tensor is read once, to look for NaN and Inf; none is kept.

    Args:
        checkpoint: see ``read_checkpoint``.
        loras: the same, for each LoRA.
        expected: shapes by canonical name; the result has exactly these.
        layouts: of the model's parts.
        disagreements: lists settings that the checkpoint's shapes contradict.
        ema: take the moving average of a file that holds it beside the trained weights.
        prefixes: see ``open_model``.
        adapt: converts the tensors of a layout to the model's shapes.
        ignored: first words of the names of networks that the file holds besides the model.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: a code that starts with ``VIDC-CHECKPOINT-`` or ``VIDC-LORA-``.
    """
    opened = open_model(checkpoint, expected, layouts, ema=ema, prefixes=prefixes)
    own = {n: t for n, t in opened.tensors.items() if n.partition(".")[0] not in ignored}
    tensors = adapt(own, opened.layout)
    check_model(tensors, expected, opened.layout, checkpoint, disagreements)
    check_dtypes(tensors, checkpoint)
    check_finite(tensors, checkpoint)
    adapters = [_read_lora(lora, tensors, layouts) for lora in loras]
    provenance = opened.provenance | {"loras": [source for _, source in adapters]}
    return Weights(merge(tensors, (updates.tensors for updates, _ in adapters)), provenance)


def lora_files(lora: Path) -> tuple[Path, ...]:
    """Every file that ``load_weights`` reads of a LoRA; raises as ``checkpoint_files``."""
    config = config_beside(lora)
    return (*checkpoint_files(lora), *([] if config is None else [config]))


def _read_lora(
    lora: Path, base: Mapping[str, LazyTensor], layouts: Sequence[Layout]
) -> tuple[Updates, dict[str, Any]]:
    """Returns the updates of a LoRA, and its provenance."""
    adapter = read_checkpoint(lora, _LORA_SECTIONS)
    config = AdapterConfig.of(lora, adapter.files[-1])
    updates = read_updates(adapter.tensors, config, base, layouts, lora)
    added = {name: tensor for name, tensor in adapter.tensors.items() if not is_alpha(name)}
    check_dtypes(added, lora)
    check_finite(added, lora)
    return updates, {
        "files": [file.name for file in lora_files(lora)],
        "layout": updates.layout.name,
        "section": adapter.section,
        "modules": updates.modules,
        "ranks": list(updates.ranks),
        "scales": list(updates.scales),
    }
