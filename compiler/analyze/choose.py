"""Chooses which groups go to 8 bits: the fastest within a floor, the best within a time."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vidc.compiler.analyze.budget import PSNR, Budget
from vidc.compiler.analyze.groups import LayerGroup
from vidc.plugins.errors import UsageError

_GUESSES = 2
"""How many mixes are guessed from the groups' own damage; then the interval is halved."""

_FILLS = 4
"""How many groups behind the first that is too much are tried at most, each with a mix."""
_ROUNDING = 1e-9
"""Of shares of a time: sums of them round."""


@dataclass(frozen=True)
class Scored:
    """A group, what it does to the video alone, and the seconds a block that it saves."""

    group: LayerGroup
    sqnr_db: float
    psnr_db: float
    saved: float

    @property
    def damage(self) -> float:
        """Its mean squared error as a share of the squared peak; what several do about adds up."""
        return _error(self.psnr_db)


@dataclass(frozen=True)
class Choice:
    """Groups that go to 8 bits, and the PSNR that they have together, in dB."""

    groups: tuple[Scored, ...]
    psnr_db: float


Measure = Callable[[Sequence[Scored]], float]
"""The PSNR of a rollout with these groups in 8 bits, in dB."""


def by_damage(scored: Sequence[Scored]) -> list[Scored]:
    """The worst first."""
    return sorted(scored, key=lambda each: (each.psnr_db, each.sqnr_db))


def by_price(scored: Sequence[Scored]) -> list[Scored]:
    """Those that save time, with the least damage for each second saved first."""
    saving = [each for each in scored if each.saved > 0]
    return sorted(saving, key=lambda each: (each.damage / each.saved, -each.sqnr_db))


def choose(budget: Budget, scored: Sequence[Scored], seconds: float, measure: Measure) -> Choice:
    """The mix of a budget.

    Args:
        budget: what it has to keep to.
        scored: all groups.
        seconds: of a block in high precision.
        measure: plays a mix.

    Raises:
        UsageError: ``VIDC-BUDGET-UNREACHABLE``, with the nearest that can be reached;
            ``VIDC-SENSITIVITY-GROUPS``, no group saves time.
    """
    if budget.kind == PSNR:
        return fastest_within(budget.value, scored, measure)
    return best_within(budget.value, scored, seconds, measure)


def fastest_within(floor: float, scored: Sequence[Scored], measure: Measure) -> Choice:
    """As many groups as the floor allows, in the order of ``by_price``.

    A first guess adds up what the groups do alone. A rollout with all of them says what they do
    together; the guess is mended, once by the factor between the two and then by halves, until one
    more group is known to be too much. Groups that break the floor alone are left out before, and
    later ones that seem to fit are added behind.
    """
    require_saving(scored)
    order = [each for each in by_price(scored) if each.psnr_db >= floor]
    if not order:
        best = by_damage(by_price(scored))[-1]
        raise _unreachable(
            f"psnr={floor:g}: of all groups that save time {best.group.pattern} does the least "
            f"damage, and leaves {best.psnr_db:.1f} dB",
            f"ask for psnr={_below(best.psnr_db):g} or less, or build in high precision"
            if best.psnr_db > 1
            else "build in high precision, or pass --recipe with another",
        )
    # One group alone has been measured already.
    holds, fails = 1, len(order) + 1
    best_db, factor, tries = order[0].psnr_db, 1.0, 0
    while fails - holds > 1:
        if tries < _GUESSES:
            count = min(max(_guess(order, floor, factor), holds + 1), fails - 1)
        else:
            count = (holds + fails) // 2
        psnr_db = measure(order[:count])
        tries += 1
        if psnr_db >= floor:
            holds, best_db = count, psnr_db
        else:
            fails = count
        expected = sum(each.damage for each in order[:count])
        if expected and math.isfinite(psnr_db):
            factor = _error(psnr_db) / expected
    # One more of the order is too much; one further on that does less may not be.
    chosen, tries = order[:holds], 0
    for each in order[holds + 1 :]:
        if tries == _FILLS or _error(best_db) + factor * each.damage > _error(floor):
            continue
        tries += 1
        psnr_db = measure([*chosen, each])
        if psnr_db >= floor:
            chosen, best_db = [*chosen, each], psnr_db
    return Choice(tuple(chosen), best_db)


def best_within(ratio: float, scored: Sequence[Scored], seconds: float, measure: Measure) -> Choice:
    """As few groups as the time demands, in the order of ``by_price``.

    Of those, the most damaging that turn out not to be needed are put back.
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
    """Refuses a recipe that makes nothing faster: ``VIDC-SENSITIVITY-GROUPS``."""
    if not by_price(scored):
        raise UsageError(
            "VIDC-SENSITIVITY-GROUPS",
            "no group of the recipe is predicted to save time on this target, so there is nothing "
            "to choose",
            "pass --recipe with one that computes in 8 bits, --for with another target, or leave "
            "--budget out",
        )


def require_time(ratio: float, scored: Sequence[Scored], seconds: float) -> None:
    """Refuses a time that not even everything in 8 bits is predicted to reach.

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


def _guess(order: Sequence[Scored], floor: float, factor: float) -> int:
    """How many groups the floor allows if damage adds up, ``factor`` times."""
    count, total = 0, 0.0
    for each in order:
        total += factor * each.damage
        if total > _error(floor):
            break
        count += 1
    return count


def _saved(scored: Sequence[Scored]) -> float:
    return sum(each.saved for each in scored)


def _error(psnr_db: float) -> float:
    return float(10 ** (-psnr_db / 10))


def _below(psnr_db: float) -> float:
    """In tenths, not above: what is suggested must hold."""
    return psnr_db * 10 // 1 / 10


def _unreachable(why: str, hint: str) -> UsageError:
    return UsageError("VIDC-BUDGET-UNREACHABLE", f"--budget {why}", hint)
