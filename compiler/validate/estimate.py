"""Estimated CPU time of a validation, and the level that it allows."""

import os
from collections.abc import Mapping

from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.stream import stream_spec
from vidc.compiler.validate.scenario import Scenario, switches
from vidc.exporters.components import weights_groups
from vidc.exporters.config import ModelConfig

CPU_FLOPS_A_CORE = 50e9
"""float32 rate of one CPU core in PyTorch eager, in round numbers: for estimates of minutes."""
VAE_FLOPS_A_PIXEL = 36e12 / (12 * 480 * 832)
"""Decoding at base width 96; it grows with the square of the width."""
LONG_SECONDS = 600
"""A CPU that takes longer to play a rollout is spared it where the level is ``auto``."""
MINUTE = 60


def scenario(settings: Settings) -> Scenario:
    """Returns the scenario of a validation and resolves ``validate.level = auto``."""
    config = settings.validate
    rollout = Scenario(config.blocks, config.switch_after, rollout=True)
    if config.level == "auto":
        whole = settings.target.is_gpu or replay_seconds(settings.model, rollout) < LONG_SECONDS
    else:
        whole = config.level == "rollout"
    return rollout if whole else Scenario(blocks=2, switch_after=1, rollout=False)


def announcement(settings: Settings) -> str | None:
    """Returns the time and level of a validation on a CPU, if it takes minutes."""
    if settings.target.is_gpu:
        return None
    chosen = scenario(settings)
    precisions = {group: settings.precision[group] for group in weights_groups(settings.model)}
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
    config: ModelConfig,
    scenario: Scenario,
    precisions: Mapping[str, str],
    quantized: bool = False,
) -> float:
    """PyTorch eager playing in float32 and, where they differ, in the groups' precisions.

    Args:
        config: of the model.
        scenario: what is played.
        precisions: of each weights group, high.
        quantized: whether it plays a recipe's numbers, too, as stage ``golden:quantized`` does.
    """
    seconds = _seconds(components_flops(config, scenario))
    if set(precisions.values()) != {"fp32"}:
        seconds += _seconds(_played_flops(config, scenario))
    if quantized:
        seconds += _seconds(_played_flops(config, scenario))
    return seconds


def replay_seconds(config: ModelConfig, scenario: Scenario) -> float:
    """A validation's own playing, by engines no faster than PyTorch eager.

    The reference's latents are decoded, too.
    """
    flops = _played_flops(config, scenario)
    if scenario.rollout:
        flops += scenario.blocks * decode_flops(config)
    return _seconds(flops)


def latents_seconds(config: ModelConfig, scenario: Scenario) -> float:
    """PyTorch eager playing a rollout without decoding it."""
    return _seconds(latents_flops(config, scenario))


def rollout_seconds(config: ModelConfig, scenario: Scenario) -> float:
    """PyTorch eager playing a rollout and decoding it."""
    return _seconds(rollout_flops(config, scenario))


def components_flops(config: ModelConfig, scenario: Scenario) -> float:
    """Returns the FLOPs of ``play_components`` without the text encoder."""
    stream = stream_spec(config)
    points = switches(stream)
    recached = sum(stream.recached(blocks * stream.block) for blocks in points)
    # Each block before the last switch is remembered, and one pass follows it.
    frames = recached + points.stop * stream.block
    # The encoders take two blocks.
    encoding = 2 * decode_flops(config)
    return rollout_flops(config, scenario) + frames * frame_flops(config) + encoding


def rollout_flops(config: ModelConfig, scenario: Scenario) -> float:
    """Returns the FLOPs of ``play_rollout``."""
    return latents_flops(config, scenario) + scenario.blocks * decode_flops(config)


def latents_flops(config: ModelConfig, scenario: Scenario) -> float:
    """Returns the FLOPs of ``play_rollout`` without decoding."""
    stream = stream_spec(config)
    passes = len(stream.sigmas) + 1
    recached = stream.recached(scenario.switch_after * stream.block)
    frames = scenario.blocks * passes * stream.block + recached
    return frames * frame_flops(config)


def _played_flops(config: ModelConfig, scenario: Scenario) -> float:
    flops = components_flops(config, scenario)
    return flops + rollout_flops(config, scenario) if scenario.rollout else flops


def frame_flops(config: ModelConfig) -> float:
    """One pass over one latent frame with a full window: linear layers and both attentions."""
    sizes, stream = config.transformer, config.stream
    slots = stream.window * config.frame_tokens
    linear = 2 * (6 * sizes.dim**2 + 2 * sizes.dim * sizes.ffn_dim)
    attention = 4 * (slots + sizes.text_len) * sizes.dim
    return float(stream.batch * sizes.layers * config.frame_tokens * (linear + attention))


def decode_flops(config: ModelConfig) -> float:
    """Decoding one block."""
    stream = config.stream
    pixels = stream.batch * 4 * stream.block * stream.height * stream.width
    return pixels * VAE_FLOPS_A_PIXEL * (config.vae.base_dim / 96) ** 2


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
