"""Errors that vidc reports: a code, a message, a hint and an exit status.

``configs/errors.toml`` explains every code; ``vidc explain CODE`` prints the explanation.
"""

import json
from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class VidcError(Exception):
    """An error whose cause lies outside vidc's own code, reported without a traceback.

    Args:
        code: a key of ``configs/errors.toml``, such as ``VIDC-BUNDLE-ALTERED``.
        message: names the thing, what was expected and what was found.
        hint: what to try.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return printable(f"[{self.code}] {self.message}\n  try: {self.hint}")


class GateError(VidcError):
    """A failed check of a result: numerics, a regression, a bundle's integrity."""

    exit_code = 1


class UsageError(VidcError):
    """A command or configuration that asks for something that does not exist."""

    exit_code = 2


class UnavailableError(VidcError):
    """Something that vidc supports, but not on this machine or with these versions."""

    exit_code = 3


class BuildError(VidcError):
    """A failed step of the build."""

    exit_code = 4


def printable(text: str) -> str:
    """Returns a text with control and formatting characters escaped, as JSON escapes them.

    Names in files that users bring then cannot move a terminal's cursor, hide lines or set titles.
    """
    return "".join(c if c == "\n" or c.isprintable() else json.dumps(c)[1:-1] for c in text)


_MOST_LISTED = 40


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint with the known name closest to ``name``, and a list of all if it is short."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    if close and len(names) > _MOST_LISTED:
        return f"did you mean {close[0]!r}?"
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return f"{suggestion}known: {', '.join(names)}"
