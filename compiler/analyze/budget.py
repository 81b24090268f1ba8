"""What a mix of layers in 8 bits and in high precision has to keep to."""

import math
import re
from dataclasses import dataclass

from vidc.plugins.errors import UsageError

PSNR, TIME = "psnr", "time"
MOST_DB = 120.0
"""Far above what frames of 8 bits can have and not be equal."""
_BUDGET = re.compile(r"\s*(psnr|time)\s*=\s*([0-9.eE+-]+)\s*", re.ASCII)


@dataclass(frozen=True)
class Budget:
    """A floor or a ceiling.

    Attributes:
        kind: ``psnr`` or ``time``.
        value: dB that the worst block must have, or the share of the time in high precision that a
            block may take, between 0 and 1.
    """

    kind: str
    value: float

    def __str__(self) -> str:
        return f"{self.kind}={self.value:g}"


def parse_budget(text: str) -> Budget:
    """``psnr=DB`` or ``time=RATIO``.

    Raises:
        UsageError: ``VIDC-BUDGET``.
    """
    found = _BUDGET.fullmatch(text)
    try:
        value = float(found[2]) if found else math.nan
    except ValueError:
        value = math.nan
    if found is None or not math.isfinite(value):
        raise _nonsense(f"{text!r} is no budget")
    if found[1] == PSNR and not 0 < value <= MOST_DB:
        raise _nonsense(f"{text}: a floor lies above 0 and at most at {MOST_DB:g} dB")
    if found[1] == TIME and not 0 < value < 1:
        raise _nonsense(
            f"{text}: it is a share of the time in high precision, between 0 and 1 and neither"
        )
    return Budget(found[1], value)


def _nonsense(why: str) -> UsageError:
    return UsageError(
        "VIDC-BUDGET",
        f"--budget {why}",
        "give psnr=38 (dB) or time=0.7 (of a block's time in high precision)",
    )
