"""Patterns over names of layers: ``*`` is any part between two dots, ``**`` any number of them."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from vidc.plugins.errors import UsageError

_PATTERN = re.compile(r"(\*\*|[\w*]+)(\.(\*\*|[\w*]+))*", re.ASCII)
_INDEX = re.compile(r"(?<=\.)\d+(?=\.)")


def is_pattern(text: str) -> bool:
    """Returns True if a text is a pattern or a name."""
    return _PATTERN.fullmatch(text) is not None and "***" not in text


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Returns the names that a pattern matches, in order.

    ``blocks.*.ffn.**`` means every layer of every block's feed-forward; part of a name may be left
    open too, as in ``attn1.to_*``.
    """
    parts = pattern.split(".")
    return [name for name in names if _matches(parts, name.split("."))]


def require_matching(pattern: str, names: Sequence[str], where: str) -> list[str]:
    """Returns ``matching`` if it is not empty.

    Raises:
        UsageError: ``VIDC-RECIPE-LAYER``, with the nearest name.
    """
    found = matching(pattern, names)
    if not found:
        kinds = list(dict.fromkeys(_INDEX.sub("*", name, count=1) for name in names))
        close = get_close_matches(pattern, [*kinds, *names], n=1, cutoff=0.5)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(
            "VIDC-RECIPE-LAYER",
            f"{where}: the model has no layer {pattern!r}",
            f"{suggestion}layers: {', '.join(kinds)}",
        )
    return found


def _matches(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(pattern[1:], parts[skipped:]) for skipped in range(len(parts) + 1))
    if not parts:
        return False
    part = re.escape(pattern[0]).replace(r"\*", ".*")
    return re.fullmatch(part, parts[0]) is not None and _matches(pattern[1:], parts[1:])
