"""Figures of a benchmark as people read them."""

import math

from vidc.compiler.bench.profile import Rate
from vidc.compiler.bench.sweep import Change
from vidc.compiler.store.units import byte_size

_DIGITS = 4


def figure(value: float | None, unit: str) -> str:
    """A value with four digits and its unit, such as ``269.8 ms``; nothing where there is none."""
    if value is None:
        return ""
    if unit == "bytes":
        return byte_size(round(value))
    return f"{plain(value)} {unit}"


def bare(value: float | None, unit: str) -> str:
    """As ``figure``, without the unit that stands beside; that of bytes depends on the value."""
    return "" if value is None else figure(value, unit).removesuffix(f" {unit}")


def plain(value: float, digits: int = _DIGITS) -> str:
    """A value with four or so many digits, and all of those before the point."""
    magnitude = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:.{max(0, digits - 1 - magnitude)}f}"


def interval(ci95: tuple[float, float] | None, unit: str) -> str:
    """The interval of a median, such as ``269.1 to 270.4``, without the unit that stands beside."""
    if ci95 is None:
        return ""
    if unit == "bytes":
        return " to ".join(byte_size(round(end)) for end in ci95)
    return " to ".join(plain(end) for end in ci95)


def rate(found: Rate | None) -> tuple[str, str]:
    """A rate and its share of the peak, where they are known."""
    if found is None:
        return "", ""
    share = "" if found.share is None else f"{100 * found.share:.0f} %"
    return plain(found.value, 3), share


def change(found: Change | None) -> tuple[str, str, str]:
    """Relative L2, PSNR and SSIM of a changed output, where it can be compared."""
    if found is None:
        return "", "", ""
    psnr = f"{found.psnr_db:.1f}" if math.isfinite(found.psnr_db) else "∞"
    return f"{found.relative_l2:.2e}", psnr, f"{found.ssim:.4f}"
