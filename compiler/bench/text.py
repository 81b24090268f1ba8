"""Text for the figures and facts of a benchmark."""

import math
from collections.abc import Mapping
from typing import Any

from vidc.compiler.bench.profile import Rate
from vidc.compiler.bench.sweep import Change
from vidc.compiler.store.disk import byte_size

_DIGITS = 4


def figure(value: float | None, unit: str) -> str:
    """Returns a value with four digits and its unit, such as ``269.8 ms``; empty for None."""
    if value is None:
        return ""
    if unit == "bytes":
        return byte_size(round(value))
    return f"{plain(value)} {unit}"


def bare(value: float | None, unit: str) -> str:
    """Returns a value as ``figure`` does, without the unit; bytes keep theirs."""
    return "" if value is None else figure(value, unit).removesuffix(f" {unit}")


def plain(value: float, digits: int = _DIGITS) -> str:
    """Returns a value with this many significant digits and every digit of its integer part."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def interval(ci95: tuple[float, float] | None, unit: str) -> str:
    """Returns an interval without its unit, such as ``269.1 to 270.4``."""
    if ci95 is None:
        return ""
    if unit == "bytes":
        return " to ".join(byte_size(round(end)) for end in ci95)
    return " to ".join(plain(end) for end in ci95)


def rate(found: Rate | None) -> tuple[str, str]:
    """Returns a rate and its share of the peak as text; empty where unknown."""
    if found is None:
        return "", ""
    share = "" if found.share is None else f"{100 * found.share:.0f} %"
    return plain(found.value, 3), share


def change(found: Change | None) -> tuple[str, str, str]:
    """Returns relative L2, PSNR and SSIM as text; empty for None."""
    if found is None:
        return "", "", ""
    psnr = f"{found.psnr_db:.1f}" if math.isfinite(found.psnr_db) else "∞"
    return f"{found.relative_l2:.2e}", psnr, f"{found.ssim:.4f}"


_NAMES = {"cpu": "CPU", "gpu": "GPU", "cuda": "CUDA", "cudnn": "cuDNN", "mig": "MIG", "sm": "SM",
          "python": "Python"}  # fmt: skip
_UNITS = {"mhz": "MHz", "w": "W", "c": "°C"}
_BYTES = "bytes"
_LIMITS = (
    "idle", "clocks that an application set", "power cap", "hardware slowdown",
    "boost shared with other GPUs", "heat, by the driver", "heat, by the hardware",
    "power brake, by the hardware", "clocks of a display",
)  # fmt: skip
"""Reasons that limit a GPU's clocks, by bit of NVML's ``nvmlClocksEventReasons``."""
_OF_A_GPU = ("driver", "cuda", "cudnn")


def label(name: str) -> str:
    """Returns a name such as ``max_sm_clock_mhz`` in words without its unit: ``max SM clock``."""
    unit = _unit(name)
    words = name.split("_") if unit is None else name.split("_")[:-1]
    return " ".join(_NAMES.get(word, word) for word in words)


def phrase(value: Any, name: str = "") -> str:
    """Returns a value as text with its unit; unknown entries of a table are left out."""
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
    """Merges tables to text by label.

    Without a GPU, entries that only a GPU has are left out.
    """
    merged = {name: value for table in tables for name, value in table.items()}
    if "gpu" in merged and merged["gpu"] is None:
        merged["gpu"] = "not used"
        merged = {name: value for name, value in merged.items() if name not in _OF_A_GPU}
    return {label(name): phrase(value, name) for name, value in merged.items()}


def _unit(name: str) -> str | None:
    """Returns the unit that a name such as ``memory_bytes`` ends with; None if there is none."""
    _, underscore, end = name.rpartition("_")
    return end if underscore and end in (*_UNITS, _BYTES) else None


def _limits(mask: str) -> str:
    """Returns the reasons in a hexadecimal bit mask, or the mask itself if a bit is unknown."""
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
