"""Machine, software and workload of a benchmark as phrases, from tables of plain JSON values."""

from collections.abc import Mapping
from typing import Any

from vidc.compiler.store.units import byte_size

_NAMES = {"cpu": "CPU", "gpu": "GPU", "cuda": "CUDA", "cudnn": "cuDNN", "mig": "MIG", "sm": "SM",
          "python": "Python"}  # fmt: skip
_UNITS = {"mhz": "MHz", "w": "W", "c": "°C"}
_BYTES = "bytes"
_LIMITS = (
    "idle", "clocks that an application set", "power cap", "hardware slowdown",
    "boost shared with other GPUs", "heat, by the driver", "heat, by the hardware",
    "power brake, by the hardware", "clocks of a display",
)  # fmt: skip
"""What holds a GPU's clocks down, by the bits of NVML's ``nvmlClocksEventReasons``."""
_OF_A_GPU = ("driver", "cuda", "cudnn")


def label(name: str) -> str:
    """A name such as ``max_sm_clock_mhz`` in words, without the unit: ``max SM clock``."""
    unit = _unit(name)
    words = name.split("_") if unit is None else name.split("_")[:-1]
    return " ".join(_NAMES.get(word, word) for word in words)


def phrase(value: Any, name: str = "") -> str:
    """A value as a phrase, with the unit that its name ends with; of a table what is known."""
    if isinstance(value, Mapping):
        known = {key: item for key, item in value.items() if item is not None}
        return ", ".join(f"{label(key)} {phrase(item, key)}" for key, item in known.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(phrase, value))
    if value is None:
        return "unknown"
    if name == "limited_by":
        return _limits(str(value))
    text = f"{value:g}" if isinstance(value, float) else str(value)
    unit = _unit(name)
    if unit is None or not _is_number(text):
        return text
    return byte_size(round(float(text))) if unit == _BYTES else f"{text} {_UNITS[unit]}"


def facts(*tables: Mapping[str, Any]) -> dict[str, str]:
    """The entries of several tables, a name in words to a phrase.

    Where no GPU was used, what only one has is left out instead of being called unknown.
    """
    merged = {name: value for table in tables for name, value in table.items()}
    if "gpu" in merged and merged["gpu"] is None:
        merged["gpu"] = "not used"
        merged = {name: value for name, value in merged.items() if name not in _OF_A_GPU}
    return {label(name): phrase(value, name) for name, value in merged.items()}


def _unit(name: str) -> str | None:
    """What a name such as ``memory_bytes`` ends with, where that is a unit."""
    _, underscore, end = name.rpartition("_")
    return end if underscore and end in (*_UNITS, _BYTES) else None


def _limits(mask: str) -> str:
    """The bits of a mask such as ``0x0000000000000004`` in words; the mask where one is unknown."""
    try:
        bits = int(mask, 16)
    except ValueError:
        return mask
    if bits >> len(_LIMITS):
        return mask
    return " and ".join(text for bit, text in enumerate(_LIMITS) if bits >> bit & 1) or "nothing"


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
