"""Loads a bundle and replays it."""

from vidc.plugins.errors import GateError, UnavailableError, UsageError, VidcError
from vidc.runtime.bundle import Bundle, load
from vidc.runtime.programs.base import Session

__all__ = [
    "Bundle", "GateError", "Session", "UnavailableError", "UsageError", "VidcError", "load",
]  # fmt: skip
