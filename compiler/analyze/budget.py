"""Budget of a mix of quantized and high-precision layers."""

import math
import re
from dataclasses import dataclass

from vidc.plugins.errors import UsageError

PSNR, TIME = "psnr", "time"
MOST_DB = 120.0
"""Limit in dB, far above the PSNR of unequal 8-bit frames."""
_BUDGET = re.compile(r"\s*(psnr|time)\s*=\s*([0-9.eE+-]+)\s*", re.ASCII)


@dataclass(frozen=True)
class Budget:
    """Minimum PSNR or maximum time.

    Attributes:
        kind: ``psnr`` or ``time``.
        value: minimum PSNR of the worst block in dB, or maximum time of a block relative to high
            precision, between 0 and 1.
    """

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.kind}={self.value:g}"


def parse_budget(text: str) -> Budget:
    """Parses ``psnr=DB`` or ``time=RATIO``.

    Raises:
        UsageError: ``VIDC-BUDGET``.
    """
    found = _BUDGET.fullmatch(text)
    try:
        value = float(found[2]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise _nonsense(f"{text!r} is not a budget")
    if found[1] == PSNR and not 0 < value <= MOST_DB:
        raise _nonsense(f"{text}: a PSNR is above 0 and at most {MOST_DB:g} dB")
    if found[1] == TIME and not 0 < value < 1:
        raise _nonsense(
            f"{text}: a time is a share of the time in high precision, above 0 and below 1"
        )
    return Budget(found[1], value)


def _nonsense(why: str) -> UsageError:
    return UsageError(
        "VIDC-BUDGET",
        f"--budget {why}",
        "give psnr=38 (dB) or time=0.7 (of a block's time in high precision)",
    )
