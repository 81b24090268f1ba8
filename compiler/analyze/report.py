"""An analysis as JSON, as a table, and as the comments of a recipe."""

import math
from collections.abc import Sequence
from typing import Any

from vidc.compiler.analyze.choose import Scored
from vidc.compiler.analyze.run import Analysis, Mix

LEAST_SHARE = 0.9
"""Of the products with weights, what ought to be in 8 bits: less is pointed out."""


def analysis_json(analysis: Analysis) -> dict[str, Any]:
    """As plain JSON values; a figure that is not finite is null.

    ``groups`` are the most damaging first, and ``time_rank`` says how many save more. Times are
    predicted, in milliseconds a block.
    """
    plan, mix = analysis.plan, analysis.mix
    return {
        "recipe": plan.recipe.name,
        "target": plan.target.name,
        "precision": analysis.precision,
        "prompts": analysis.prompts,
        "psnr_of": analysis.compared,
        "time": {"precision": plan.costs.precision, "ms": _ms(plan.costs.seconds)},
        "flops_share": plan.formats.flops_share,
        "groups": [_group(each, analysis) for each in analysis.scored],
        "budget": None if plan.budget is None else {plan.budget.kind: plan.budget.value},
        "mix": None if mix is None else _mix(mix),
    }


def table(analysis: Analysis) -> list[tuple[str, ...]]:
    """A row for each group, the most damaging first, below a head."""
    rows: list[tuple[str, ...]] = [("group", "kind", "SQNR dB", "PSNR dB", "saves")]
    for each in analysis.scored:
        share = each.saved / analysis.plan.costs.seconds
        rows.append(
            (
                each.group.pattern,
                each.group.kind,
                _decibels(each.sqnr_db),
                _decibels(each.psnr_db),
                f"{share:.2%}",
            )
        )
    return rows


def summary(analysis: Analysis) -> list[str]:
    """What a mix is, in lines; nothing where none was chosen."""
    plan, mix = analysis.plan, analysis.mix
    if mix is None:
        return []
    ms = _ms(plan.costs.seconds)
    plural = "s" if analysis.prompts > 1 else ""
    lines = [
        f"recipe {plan.recipe.name} for {plan.target.name} within --budget {plan.budget}",
        f"PSNR {_decibels(mix.psnr_db)} dB: the worst block's {analysis.compared}, of rollouts of "
        f"{analysis.prompts} prompt{plural} in {analysis.precision}, with all of this in 8 bits",
        f"predicted: a block takes {mix.ratio:.3f} of its time in {plan.costs.precision} "
        f"({ms * mix.ratio:.3g} ms of {ms:.3g} at peak rates)",
        f"{mix.flops_share:.1%} of a denoising pass's products with weights are in 8 bits"
        f"{_too_few(mix)}",
    ]
    if mix.kept:
        lines.append("kept in high precision, with the damage that each would do alone:")
        lines += _kept(mix.kept, analysis)
    else:
        lines.append("nothing that the recipe quantizes is kept in high precision")
    return lines


def _too_few(mix: Mix) -> str:
    return "" if mix.flops_share >= LEAST_SHARE else f": less than {LEAST_SHARE:.0%}"


def _kept(kept: Sequence[Scored], analysis: Analysis) -> list[str]:
    width = max(len(each.group.pattern) for each in kept)
    return [
        f"  {each.group.pattern:<{width}}  {_decibels(each.psnr_db)} dB, and costs "
        f"{each.saved / analysis.plan.costs.seconds:.2%} of the time ({each.group.kind})"
        if each.saved > 0
        else f"  {each.group.pattern:<{width}}  {_decibels(each.psnr_db)} dB, for nothing: "
        f"it saves no time ({each.group.kind})"
        for each in kept
    ]


def _group(each: Scored, analysis: Analysis) -> dict[str, Any]:
    return {
        "pattern": each.group.pattern,
        "kind": each.group.kind,
        "block": each.group.block,
        "layers": list(each.group.layers),
        "sqnr_db": _finite(each.sqnr_db),
        "psnr_db": _finite(each.psnr_db),
        "saved_ms": _ms(each.saved),
        "saved_share": each.saved / analysis.plan.costs.seconds,
        "time_rank": sum(other.saved > each.saved for other in analysis.scored),
    }


def _mix(mix: Mix) -> dict[str, Any]:
    return {
        "psnr_db": _finite(mix.psnr_db),
        "time_ratio": mix.ratio,
        "flops_share": mix.flops_share,
        "quantized": [each.group.pattern for each in mix.quantized],
        "kept": [each.group.pattern for each in mix.kept],
    }


def _ms(seconds: float) -> float:
    return seconds * 1e3


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _decibels(value: float) -> str:
    return f"{value:.1f}"
