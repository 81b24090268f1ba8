"""Choice of the layer groups to quantize, for a budget of quality or time.

A mix quantizes some groups and leaves the others in high precision. A budget asks for the fastest
mix above a PSNR, or for the best mix within a time.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidc.compiler.analyze.groups import LayerGroup
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


_FILLS = 4
"""Limit on the groups that are tried after bisection, each with a rollout."""
_ROUNDING = 1e-9
"""Tolerance of shares of a time, for the rounding of sums."""


@dataclass(frozen=True)
class Scored:
    """Group with the damage that it does alone, and the seconds that it saves per block."""

    group: LayerGroup
    sqnr_db: float
    psnr_db: float
    saved: float

    @property
    def damage(self) -> float:
        """Mean squared error relative to the squared peak; roughly additive over groups."""
        return _error(self.psnr_db)


@dataclass(frozen=True)
class Choice:
    """Groups to quantize, and their PSNR together, in dB."""

    groups: tuple[Scored, ...]
    psnr_db: float


Measure = Callable[[Sequence[Scored]], float]
"""Function that returns the PSNR of a rollout with these groups quantized, in dB."""


def by_damage(scored: Sequence[Scored]) -> list[Scored]:
    """Sorts groups, the most damaging first."""
    return sorted(scored, key=lambda each: (each.psnr_db, each.sqnr_db))


def by_price(scored: Sequence[Scored]) -> list[Scored]:
    """Returns the groups that save time, sorted by damage per second saved, the least first."""
    saving = [each for each in scored if each.saved > 0]
    return sorted(saving, key=lambda each: (each.damage / each.saved, -each.sqnr_db))


def choose(budget: Budget, scored: Sequence[Scored], seconds: float, measure: Measure) -> Choice:
    """Chooses the mix of a budget.

    Args:
        budget: the budget.
        scored: all groups.
        seconds: time of a block in high precision.
        measure: plays a mix and returns its PSNR.

    Raises:
        UsageError: ``VIDC-BUDGET-UNREACHABLE``, with the nearest reachable budget;
            ``VIDC-SENSITIVITY-GROUPS``, no group saves time.
    """
    if budget.kind == PSNR:
        return fastest_within(budget.value, scored, measure)
    return best_within(budget.value, scored, seconds, measure)


def fastest_within(floor: float, scored: Sequence[Scored], measure: Measure) -> Choice:
    """Chooses as many groups as the PSNR floor allows, in the order of ``by_price``.

    Groups that violate the floor alone are excluded. Bisection over the number of groups, with a
    rollout for each mix, finds the last mix that meets the floor before one that does not. Later
    groups whose own damage still fits are then tried one by one, ``_FILLS`` at most.
    """
    require_saving(scored)
    order = [each for each in by_price(scored) if each.psnr_db >= floor]
    if not order:
        best = by_damage(by_price(scored))[-1]
        raise _unreachable(
            f"psnr={floor:g}: {best.group.pattern} is the least damaging group that saves time, "
            f"with {best.psnr_db:.1f} dB",
            f"ask for psnr={_below(best.psnr_db):g} or less, or build in high precision"
            if best.psnr_db > 1
            else "build in high precision, or pass --recipe with another",
        )
    # The PSNR of the first group alone is known.
    holds, fails, best_db = 1, len(order) + 1, order[0].psnr_db
    while fails - holds > 1:
        count = (holds + fails) // 2
        psnr_db = measure(order[:count])
        if psnr_db >= floor:
            holds, best_db = count, psnr_db
        else:
            fails = count
    # The next group is too damaging; a later, less damaging one may fit.
    chosen, tries = order[:holds], 0
    for each in order[holds + 1 :]:
        if tries == _FILLS or _error(best_db) + each.damage > _error(floor):
            continue
        tries += 1
        psnr_db = measure([*chosen, each])
        if psnr_db >= floor:
            chosen, best_db = [*chosen, each], psnr_db
    return Choice(tuple(chosen), best_db)


def best_within(ratio: float, scored: Sequence[Scored], seconds: float, measure: Measure) -> Choice:
    """Chooses as few groups as the time demands, in the order of ``by_price``.

    Then drops groups that the time does not need, the most damaging first.
    """
    require_time(ratio, scored, seconds)
    needed = seconds * (1 - ratio - _ROUNDING)
    chosen: list[Scored] = []
    for each in by_price(scored):
        if _saved(chosen) >= needed:
            break
        chosen.append(each)
    for each in sorted(chosen, key=lambda each: -each.damage):
        without = [other for other in chosen if other is not each]
        if _saved(without) >= needed:
            chosen = without
    return Choice(tuple(chosen), measure(chosen))


def require_saving(scored: Sequence[Scored]) -> None:
    """Raises ``VIDC-SENSITIVITY-GROUPS`` if no group saves time."""
    if not by_price(scored):
        raise UsageError(
            "VIDC-SENSITIVITY-GROUPS",
            "no group of the recipe is predicted to save time on this target",
            "pass --recipe with one that computes in 8 bits, --for with another target, or leave "
            "--budget out",
        )


def require_time(ratio: float, scored: Sequence[Scored], seconds: float) -> None:
    """Rejects a time that is predicted to be out of reach with all groups quantized.

    Raises:
        UsageError: ``VIDC-BUDGET-UNREACHABLE``, ``VIDC-SENSITIVITY-GROUPS``.
    """
    require_saving(scored)
    least = 1 - _saved(by_price(scored)) / seconds
    if least > ratio + _ROUNDING:
        nearest = -(-least * 1000 // 1) / 1000
        raise _unreachable(
            f"time={ratio:g}: with every group in 8 bits a block is predicted to take {least:.3f} "
            "of its time in high precision",
            f"ask for time={nearest:g} or more, or pass --recipe with one that quantizes more",
        )


def _saved(scored: Sequence[Scored]) -> float:
    return sum(each.saved for each in scored)


def _error(psnr_db: float) -> float:
    return float(10 ** (-psnr_db / 10))


def _below(psnr_db: float) -> float:
    """Rounds down to tenths, so that a suggested floor is reachable."""
    return psnr_db * 10 // 1 / 10


def _unreachable(why: str, hint: str) -> UsageError:
    return UsageError("VIDC-BUDGET-UNREACHABLE", f"--budget {why}", hint)
