"""What an examination finds."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How a thing stands."""

    GOOD = "good"
    MISSING = "missing"
    """Not here, and a plain build for the CPU does without it or says what to install."""
    WARNING = "warning"
    """Here, and a trap for more than a plain build for the CPU."""
    BROKEN = "broken"
    """A plain build for the CPU needs it."""


@dataclass(frozen=True)
class Finding:
    """One thing, how it stands, and what to do about it."""

    name: str
    status: Status
    detail: str
    hint: str = ""
