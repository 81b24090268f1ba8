"""Loads a bundle and replays it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vidc.plugins.errors import GateError, UnavailableError, UsageError, VidcError

if TYPE_CHECKING:
    from vidc.runtime.bundle import Bundle
    from vidc.runtime.programs.base import Session
    from vidc.runtime.start import load

__all__ = [
    "Bundle", "GateError", "Session", "UnavailableError", "UsageError", "VidcError", "load",
]  # fmt: skip

_MODULES = {"Bundle": "bundle", "load": "start", "Session": "programs.base"}


def __getattr__(name: str) -> Any:
    """Imports what loads and plays a bundle when it is used: reading a manifest needs neither."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
