"""Estimated CPU time of a validation, and the level that it allows."""

import os
from collections.abc import Mapping

from vidc.compiler.config.resolve import Settings
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.families.family import Family
from vidc.runtime.program import program

CPU_FLOPS_A_CORE = 50e9
"""float32 FLOP/s of one CPU core in PyTorch eager, rounded: for estimates of minutes."""
LONG_SECONDS = 600
"""Estimated time of a rollout on a CPU from which level ``auto`` leaves the rollout out."""
MINUTE = 60


def scenario(settings: Settings) -> Scenario:
    """Returns the scenario of a validation and resolves ``validate.level = auto``."""
    config = settings.validate
    rollout = Scenario(config.blocks, config.switch_after, True, config.free_gates)
    if config.level == "auto":
        quantized = settings.quantization is not None
        seconds = replay_seconds(settings.model, rollout, quantized)
        whole = settings.target.is_gpu or seconds < LONG_SECONDS
    else:
        whole = config.level == "rollout"
    return rollout if whole else Scenario(blocks=2, switch_after=1, rollout=False)


def announcement(settings: Settings) -> str | None:
    """Returns the time and level of a validation on a CPU, if it takes minutes."""
    if settings.target.is_gpu:
        return None
    chosen = scenario(settings)
    precisions = {group: settings.precision[group] for group in settings.model.parts}
    quantized = settings.quantization is not None
    reference = about(reference_seconds(settings.model, chosen, precisions, quantized))
    if not reference:
        return None
    what = "a rollout" if chosen.rollout else "every component without a rollout"
    return (
        f"validating {what}: PyTorch's reference takes {reference} on this CPU where it is not in "
        "the cache; --set validate.level chooses the level"
    )


def reference_seconds(
    model: Family,
    scenario: Scenario,
    precisions: Mapping[str, str],
    quantized: bool = False,
) -> float:
    """Estimates the seconds that PyTorch eager takes to make a scenario's golden data.

    It plays the scenario in float32, then in the groups' precisions if they differ.

    Args:
        model: the model.
        scenario: the scenario.
        precisions: high precision of each weights group.
        quantized: True if the quantized model plays too, as in stage ``golden:quantized``.
    """
    seconds = _seconds(model.components_flops(scenario))
    if set(precisions.values()) != {"fp32"}:
        seconds += _seconds(_played_flops(model, scenario))
    if quantized:
        seconds += _seconds(_played_flops(model, scenario))
    return seconds


def replay_seconds(model: Family, scenario: Scenario, quantized: bool = False) -> float:
    """Estimates the seconds that a validation plays engines, at the rate of PyTorch eager.

    A rollout includes decoding the reference's latents.

    Args:
        model: the model.
        scenario: the scenario.
        quantized: True if engines are in 8 bits: forced blocks are then a second rollout.
    """
    flops = _played_flops(model, scenario)
    if scenario.rollout:
        flops += scenario.blocks * model.decode_flops()
        if quantized and program(model.program).forces_blocks:
            flops += model.rollout_flops(scenario)
    return _seconds(flops)


def latents_seconds(model: Family, scenario: Scenario) -> float:
    """Estimates the seconds that PyTorch eager takes to play a rollout without decoding it."""
    return _seconds(model.rollout_flops(scenario, decoded=False))


def rollout_seconds(model: Family, scenario: Scenario) -> float:
    """Estimates the seconds that PyTorch eager takes to play a rollout and decode it."""
    return _seconds(model.rollout_flops(scenario))


def _played_flops(model: Family, scenario: Scenario) -> float:
    flops = model.components_flops(scenario)
    return flops + model.rollout_flops(scenario) if scenario.rollout else flops


def about(seconds: float) -> str:
    """Returns a duration such as ``about 12 minutes``; empty below a minute."""
    minutes = round(seconds / MINUTE)
    if seconds < MINUTE:
        return ""
    return f"about {minutes} minute{'s' if minutes > 1 else ''}"


def _seconds(flops: float) -> float:
    return flops / (CPU_FLOPS_A_CORE * cores())


def cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
