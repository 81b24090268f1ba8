"""Estimates of the GPU memory that each stage takes, so that not too many run at once.

Estimates in round numbers. What they were fitted to was measured on an H200 for longlive-1.3b
(480x832, window of 12, bf16) at batch 2, without the context of each process:

- ``golden``: 75 GB;
- compiling ``denoise``, ``kv_update`` and ``recache_n``: 11 GB at most, with a ring of 6.9 GB and
  weights of 2.8 GB;
- compiling ``text_kv``: seen at 1 to 2 GB, but the estimate is higher: its program holds all the
  transformer's weights when it is moved to the device;
- compiling the VAE's components: 13 GB at most, with 1.84 GB for an activation at full resolution.

Compiling a text encoder was not measured; its weights are what is moved to the device.
"""

from vidc.compiler.config.resolve import Settings
from vidc.compiler.config.targets import Target
from vidc.exporters.components import component_groups, weights_groups
from vidc.exporters.config import ModelConfig

CONTEXT = 700_000_000
"""Bytes that CUDA takes in every process."""
RESERVE = 2_000_000_000
"""Bytes of a GPU that are left free: for the driver and the process that runs the build."""
VAE_ACTIVATIONS = 7
"""Activations at full resolution that the VAE's components hold at once."""
GOLDEN_RINGS = 3
"""Rings' worth of memory that playing the transformer takes, with what lies between its layers."""
FLOAT32 = 4
"""Bytes an element."""


def capacity(target: Target) -> int | None:
    """Bytes of the target's memory that stages may take together; None where it is no GPU."""
    if not target.is_gpu or target.memory_gb is None:
        return None
    return target.memory_gb * 10**9 - RESERVE


def compile_bytes(settings: Settings, component: str) -> int:
    """Bytes of the target's memory that compiling a component takes; 0 for a CPU.

    The program's weights and example inputs, states included, are moved there, and inductor tries
    its kernels out on tensors of their sizes.
    """
    if not settings.target.is_gpu:
        return 0
    from vidc.exporters.models import PRECISIONS

    model = settings.model
    group = component_groups(model)[component]
    elements = _weights(model, group)
    if group == "vae":
        elements += VAE_ACTIVATIONS * _activation(model)
    elif group == "transformer":
        elements += _text(model) + (0 if component == "text_kv" else _ring(model))
    return CONTEXT + elements * PRECISIONS[settings.precision[group]].itemsize


def golden_bytes(settings: Settings) -> int:
    """Bytes of the target's memory that golden data take; 0 for a CPU.

    They are played in float32 first, whatever the precision, with all the weights loaded.
    """
    if not settings.target.is_gpu:
        return 0
    model = settings.model
    weights = sum(_weights(model, group) for group in weights_groups(model))
    played = GOLDEN_RINGS * _ring(model) + VAE_ACTIVATIONS * _activation(model)
    return CONTEXT + (weights + played) * FLOAT32


def _weights(model: ModelConfig, group: str) -> int:
    """Elements of a group's matrices; nothing for a VAE, whose activations are far larger."""
    if group == "transformer":
        sizes = model.transformer
        # Each of two attentions has four square matrices.
        return sizes.layers * (8 * sizes.dim**2 + 2 * sizes.dim * sizes.ffn_dim)
    if group == "text_encoder" and model.text_encoder is not None:
        text = model.text_encoder
        attention = 4 * text.d_model * text.num_heads * text.d_kv
        # Gated: two matrices in and one out.
        layer = attention + 3 * text.d_model * text.d_ff
        return text.vocab_size * text.d_model + text.num_layers * layer
    return 0


def _ring(model: ModelConfig) -> int:
    """Elements of the keys and values of all layers."""
    stream, sizes = model.stream, model.transformer
    return 2 * sizes.layers * stream.batch * stream.window * model.frame_tokens * sizes.dim


def _text(model: ModelConfig) -> int:
    """Elements of the text's keys and values of all layers."""
    sizes = model.transformer
    return 2 * sizes.layers * model.stream.batch * sizes.text_len * sizes.dim


def _activation(model: ModelConfig) -> int:
    """Elements of a block's frames at full resolution and the VAE's base width."""
    stream = model.stream
    return stream.batch * 4 * stream.block * stream.height * stream.width * model.vae.base_dim
