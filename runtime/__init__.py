"""Loads a bundle and replays it."""

from vidc.runtime.bundle import Bundle, load
from vidc.runtime.programs.base import Session

__all__ = ["Bundle", "Session", "load"]
