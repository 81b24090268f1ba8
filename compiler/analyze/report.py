"""Reports of an analysis: JSON, table and summary."""

import math
from collections.abc import Sequence
from typing import Any

from vidc.compiler.analyze.choose import Scored
from vidc.compiler.analyze.run import Analysis, Mix

LEAST_SHARE = 0.9
"""8-bit share of the FLOPs of matmuls with weights, below which the summary warns."""


def analysis_json(analysis: Analysis) -> dict[str, Any]:
    """Returns an analysis as JSON values; figures that are not finite are null.

    ``groups`` has the most damaging first; ``time_rank`` counts the groups that save more time.
    Times are predicted, in milliseconds a block.
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
    """Returns a header and a row for each group, the most damaging first."""
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
    """Returns lines that describe the mix; none if there is no mix."""
    plan, mix = analysis.plan, analysis.mix
    if mix is None:
        return []
    ms = _ms(plan.costs.seconds)
    plural = "s" if analysis.prompts > 1 else ""
    lines = [
        f"recipe {plan.recipe.name} for {plan.target.name} within --budget {plan.budget}",
        f"PSNR {_decibels(mix.psnr_db)} dB: {analysis.compared} of the worst block, against "
        f"rollouts of {analysis.prompts} prompt{plural} in {analysis.precision}",
        f"predicted: a block takes {mix.ratio:.3f} of its time in {plan.costs.precision} "
        f"({ms * mix.ratio:.3g} ms of {ms:.3g} at peak rates)",
        f"{mix.flops_share:.1%} of a denoising pass's matmuls with weights are in 8 bits"
        f"{_too_few(mix)}",
    ]
    if mix.high:
        lines.append("left in high precision, with the damage of each group alone:")
        lines += _high(mix.high, analysis)
    else:
        lines.append("all groups of the recipe are quantized")
    return lines


def _too_few(mix: Mix) -> str:
    return "" if mix.flops_share >= LEAST_SHARE else f": less than {LEAST_SHARE:.0%}"


def _high(groups: Sequence[Scored], analysis: Analysis) -> list[str]:
    width = max(len(each.group.pattern) for each in groups)
    return [
        f"  {each.group.pattern:<{width}}  {_decibels(each.psnr_db)} dB, and costs "
        f"{each.saved / analysis.plan.costs.seconds:.2%} of the time ({each.group.kind})"
        if each.saved > 0
        else f"  {each.group.pattern:<{width}}  {_decibels(each.psnr_db)} dB, for nothing: "
        f"it saves no time ({each.group.kind})"
        for each in groups
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
        "kept": [each.group.pattern for each in mix.high],
    }


def _ms(seconds: float) -> float:
    return seconds * 1e3


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _decibels(value: float) -> str:
    return f"{value:.1f}"
