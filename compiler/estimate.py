"""How much arithmetic a model takes, from its sizes."""

import os

from vidc.exporters.config import ModelConfig

CPU_FLOPS_A_CORE = 50e9
"""float32 rate of one CPU core in PyTorch eager, in round numbers: for estimates of minutes."""
VAE_FLOPS_A_PIXEL = 36e12 / (12 * 480 * 832)
"""Decoding at base width 96; it grows with the square of the width."""


def pass_flops(config: ModelConfig) -> float:
    """One denoising pass of one block with a full window: linear layers and both attentions."""
    sizes, stream = config.transformer, config.stream
    tokens = stream.block * config.frame_tokens
    slots = stream.window * config.frame_tokens
    linear = 2 * tokens * (6 * sizes.dim**2 + 2 * sizes.dim * sizes.ffn_dim)
    attention = 4 * tokens * (slots + sizes.text_len) * sizes.dim
    return float(stream.batch * sizes.layers * (linear + attention))


def decode_flops(config: ModelConfig) -> float:
    """Decoding one block."""
    stream = config.stream
    pixels = stream.batch * 4 * stream.block * stream.height * stream.width
    return pixels * VAE_FLOPS_A_PIXEL * (config.vae.base_dim / 96) ** 2


def rollout_seconds_on_cpu(config: ModelConfig, blocks: int) -> float:
    """A rollout of this many blocks in PyTorch eager on this machine's CPU, roughly."""
    passes = len(config.sampler.steps) + 1
    block = passes * pass_flops(config) + decode_flops(config)
    return blocks * block / (CPU_FLOPS_A_CORE * (os.cpu_count() or 1))
