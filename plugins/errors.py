"""The errors that vidc reports: a code, what happened, what to try, and an exit status.

Codes are listed with an explanation in ``configs/errors.toml``; ``vidc explain CODE`` prints it.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import ClassVar


class VidcError(Exception):
    """An error whose cause lies outside vidc's own code, reported without a traceback.

    Args:
        code: a key of ``configs/errors.toml``, such as ``VIDC-BUNDLE-DIGEST``.
        message: what happened and where: names the thing, what was expected and what came.
        hint: what to try.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(code, message, hint)
        self.code = code
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}\n  try: {self.hint}"


class GateError(VidcError):
    """A check of a finished thing failed: numerics, a regression, a bundle's integrity."""

    exit_code = 1


class UsageError(VidcError):
    """The command or the configuration asks for something that does not exist."""

    exit_code = 2


class UnavailableError(VidcError):
    """Known to vidc, but not to be had on this machine or at these versions."""

    exit_code = 3


class BuildError(VidcError):
    """A step of the build failed."""

    exit_code = 4


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that suggests the known name closest to ``name`` and lists all of them."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return f"{suggestion}known: {', '.join(names)}"
