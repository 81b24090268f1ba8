"""Checkpoint layouts: recognition by names, and conversion to canonical names."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from vidc.plugins.errors import BuildError

T = TypeVar("T")

_LEADING = frozenset(
    {"base_model", "model", "module", "diffusion_model", "transformer", "pipe", "dit", "umt5xxl"}
)
_PARTS = frozenset(
    {
        *("model", "diffusion_model", "transformer", "vae", "first_stage_model"),
        *("text_encoder", "text_encoders", "cond_stage_model"),
    }
)
"""First words of the names in a file that holds a whole pipeline."""
_WRAPPERS = frozenset({"_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_orig_mod"})


@dataclass(frozen=True)
class Layout:
    """Naming scheme of a model's tensors.

    Attributes:
        name: name in messages and provenance.
        marks: parts of tensor names; most names of this layout contain one.
        convert: converts entries to canonical names.
        original: converts a canonical name to this layout's.
    """

    name: str
    marks: tuple[str, ...]
    convert: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    original: Callable[[str], str] = str

    def score(self, names: Iterable[str]) -> int:
        """Returns the number of names that have this layout."""
        return sum(any(f".{mark}." in f".{name}." for mark in self.marks) for name in names)


def by_name(canonical_name: Callable[[str], str]) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
    """Returns the conversion of entries that renames each one."""
    return partial(_with_names, canonical_name)


def _with_names(canonical_name: Callable[[str], str], entries: Mapping[str, Any]) -> dict[str, Any]:
    return {canonical_name(name): value for name, value in entries.items()}


def renamed(name: str, table: Mapping[str, str]) -> str:
    """Returns ``name`` with the first entry of ``table`` that it starts with replaced."""
    for old, new in table.items():
        if name == old or name.startswith(f"{old}."):
            return new + name[len(old) :]
    return name


LORA = Layout("LoRA", ("lora_A", "lora_B", "lora_down", "lora_up"))
UNKNOWN = Layout("unknown", ())

CLIP = Layout("CLIP", ("text_model", "vision_model", "visual", "textual"))
UNET = Layout("UNet", ("down_blocks", "mid_block", "up_blocks", "input_blocks", "output_blocks"))


def recognize(names: Iterable[str], layouts: Sequence[Layout]) -> Layout:
    """Returns the layout that claims the most of these names; ``UNKNOWN`` if none claims any.

    Args:
        names: of tensors or modules.
        layouts: the layouts to choose from.
    """
    names = list(names)
    # On a tie, max takes the first layout. So CLIP comes early: its layers have a self_attn too.
    best = max((LORA, CLIP, *layouts), key=lambda layout: layout.score(names))
    return best if best.score(names) else UNKNOWN


def strip(name: str) -> str:
    """``name`` without the components that wrappers of a model add to it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    while len(parts) > 1 and parts[0] in _LEADING:
        del parts[0]
    return ".".join(parts)


def own_part(
    entries: Mapping[str, T], expected: Collection[str], layouts: Sequence[Layout]
) -> tuple[Mapping[str, T], str | None]:
    """The entries of one part in a file that holds a whole pipeline, and the part's first word.

    Args:
        entries: tensors by name.
        expected: canonical names of the part's tensors.
        layouts: of a model's parts.

    Returns:
        The part that most of ``expected`` match, under the names inside it; all entries and None
        for a file that does not hold a pipeline.
    """
    parts: dict[str, dict[str, T]] = defaultdict(dict)
    for name, value in entries.items():
        first, _, rest = name.partition(".")
        parts[first][rest] = value
    if len(parts) < 2 or not parts.keys() <= _PARTS:
        return entries, None

    def fitting(part: str) -> int:
        names = [strip(name) for name in parts[part]]
        layout = recognize(names, layouts)
        return len(layout.convert(dict.fromkeys(names)).keys() & set(expected))

    best = max(parts, key=fitting)
    return (parts[best], best) if fitting(best) else (entries, None)


def with_prefixes(entries: Mapping[str, T], prefixes: Mapping[str, str]) -> dict[str, T]:
    """Returns the entries that start with one of the prefixes, which are replaced.

    Args:
        entries: tensors by name.
        prefixes: prefixes of names, with their replacements.
    """
    return {
        new + name.removeprefix(old): value
        for old, new in prefixes.items()
        for name, value in entries.items()
        if name.startswith(old)
    }


def canonical(
    entries: Mapping[str, T], source: object, layouts: Sequence[Layout]
) -> tuple[dict[str, T], Layout]:
    """A checkpoint's entries under canonical names, and the layout that they came in.

    Args:
        entries: tensors by name, or anything else by the name of a module.
        source: what to call the checkpoint.
        layouts: of a model's parts.

    Raises:
        BuildError: ``VIDC-CHECKPOINT-MISMATCH`` if two entries get the same name.
    """
    short = {name: strip(name) for name in entries}
    layout = recognize(short.values(), layouts)
    # Converts names, not entries: two entries that get one name are then found, not merged.
    names = {old: new for new, old in layout.convert({old: old for old in short.values()}).items()}
    result: dict[str, T] = {}
    for name, value in entries.items():
        new = names.get(short[name])
        if new is None or new in result:
            raise BuildError(
                "VIDC-CHECKPOINT-MISMATCH",
                f"{source} holds several tensors that are the same one by name, such as {name}",
                "save one model's state dict alone",
            )
        result[new] = value
    return result, layout
