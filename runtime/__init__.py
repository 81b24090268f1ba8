"""Loads a bundle and replays it."""

from vidc.runtime.bundle import Bundle, load
from vidc.runtime.session import Session

__all__ = ["Bundle", "Session", "load"]
