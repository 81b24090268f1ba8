"""The networks of the demo model, as vidc's presets and exporters define them, to be trained."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from demo_model.tokens import END, LENGTH, PAD, VOCABULARY
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.program import program_spec
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.umt5 import network as umt5
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.wan_vae.network import create
from vidc.runtime.programs.stream import StreamSpec

PRESET = "demo"
TEXT_LAYERS = 3
LOG_VARIANCE = -6.0
"""Of latents in a VAE that is yet to be trained."""

PAST = 0.1
"""Of an earlier frame's weights in a causal convolution, over those of the frame at hand."""

_AFTER_SILU = 1.68
"""Restores the variance of a unit normal that went through SiLU."""

_GAINS = {
    "conv1": _AFTER_SILU,
    "conv2": 0.3 * _AFTER_SILU,
    "proj": 0.3,
    "conv_out": _AFTER_SILU,
    "decoder.conv_out": 0.5,
}
"""Of convolutions by name or by the last part of it, where it is not 1."""

TEXT_HEAD = 32
"""Width of a head of the text encoder."""


@dataclass(frozen=True)
class Sizes:
    """The model that is trained.

    Attributes:
        config: with the text encoder that ``vidc build`` reads from its folder.
        stream: the same stream as a bundle's manifest states it.
    """

    config: CausalVideo
    stream: StreamSpec

    @property
    def text(self) -> TextEncoderConfig:
        """Sizes of the text encoder."""
        assert self.config.text_encoder is not None
        return self.config.text_encoder


def demo_sizes(preset: str | Path = PRESET) -> Sizes:
    """The sizes in a preset, by name or from a TOML file.

    Raises:
        ValueError: the preset's prompts are shorter than the longest caption, or its sink and
            window are no whole blocks.
    """
    config = load_preset(str(preset)).model
    assert isinstance(config, CausalVideo)
    stream = config.stream
    if config.transformer.text_len < LENGTH:
        raise ValueError(f"model.text_len = {config.transformer.text_len}, captions take {LENGTH}")
    if stream.sink % stream.block or stream.window % stream.block:
        raise ValueError(
            f"sink = {stream.sink} and window = {stream.window} are no multiples of block = "
            f"{stream.block}: the training layout is made of whole blocks"
        )
    width = config.transformer.text_dim
    text = TextEncoderConfig(
        vocab_size=len(VOCABULARY),
        d_model=width,
        d_kv=min(TEXT_HEAD, width // 2),
        d_ff=2 * width,
        num_layers=TEXT_LAYERS,
        num_heads=max(2, width // TEXT_HEAD),
        pad_token_id=PAD,
        eos_token_id=END,
    )
    config = replace(config, text_encoder=text)
    return Sizes(config, program_spec(config))


def new_transformer(sizes: Sizes) -> CausalWan:
    """A transformer to train, float32: Wan's own initial weights, and a flow of zero."""
    model = CausalWan(sizes.config.transformer)
    dim = sizes.config.transformer.dim
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    patch = model.patch_embedding.weight
    nn.init.xavier_uniform_(patch.data.view(patch.shape[0], -1))
    embedder = model.condition_embedder
    for linear in (
        *(layer for part in (embedder.time_embedder,) for layer in (part.linear_1, part.linear_2)),
        *(layer for part in (embedder.text_embedder,) for layer in (part.linear_1, part.linear_2)),
    ):
        nn.init.normal_(linear.weight, std=0.02)
    nn.init.normal_(embedder.time_proj.weight, std=0.02)
    for table in (model.scale_shift_table, *(layer.scale_shift_table for layer in model.layers)):
        nn.init.normal_(table, std=1 / math.sqrt(dim))
    nn.init.zeros_(model.proj_out.weight)
    return model


def new_vae(sizes: Sizes) -> nn.Module:
    """A VAE to train, float32, whose untrained layers pass on what they get.

    With diffusers' initial weights the signal shrinks from layer to layer and each latent has ten
    times as much noise as signal: the decoder learns to do without latents, and the encoder then
    has nothing to learn from. Here activations keep their variance, residual branches begin small,
    frames of the past count less than the one at hand, and the posterior is narrow.
    """
    vae = create(sizes.config.vae, torch.float32, "cpu").requires_grad_(True).train()
    for name, module in vae.named_modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            _pass_on(module.weight, _GAINS.get(name) or _GAINS.get(name.rsplit(".", 1)[-1], 1.0))
            nn.init.zeros_(module.get_parameter("bias"))
        if name.endswith("time_conv"):
            _copy_newest(module.get_parameter("weight"))
    channels = sizes.config.vae.z_dim
    moments = vae.get_submodule("quant_conv")
    with torch.no_grad():
        moments.get_parameter("weight")[channels:] *= 0.1
        moments.get_parameter("bias")[channels:] = LOG_VARIANCE
    return vae


def _copy_newest(weight: Tensor) -> None:
    """Makes a convolution in time that halves or doubles frames pass on the newest one.

    A clip's first frame goes around it. With random weights each of four frames would come out in
    terms of its own, of which the layers behind, all shared, can make nothing.
    """
    nn.init.zeros_(weight)
    outputs, inputs = weight.shape[:2]
    with torch.no_grad():
        weight[:, :, -1, 0, 0] = torch.eye(inputs).repeat(outputs // inputs, 1)


def _pass_on(weight: Tensor, gain: float) -> None:
    """Draws a convolution's weights so that unit variance becomes ``gain`` squared."""
    taps = torch.ones(1)
    if weight.ndim == 5 and weight.shape[2] > 1:
        taps = torch.full((weight.shape[2],), PAST)
        taps[-1] = 1.0
        taps = taps / taps.norm() * math.sqrt(len(taps))
        taps = taps.view(1, 1, -1, 1, 1)
    with torch.no_grad():
        weight.normal_(std=gain / math.sqrt(math.prod(weight.shape[1:]))).mul_(taps)


def new_text_encoder(sizes: Sizes) -> umt5.TextEncode:
    """A text encoder to train, float32: the component that a bundle runs, over any batch.

    It maps ``input_ids`` and ``attention_mask``, int64 ``[B, L]``, to embeddings ``[B, L, E]``.
    """
    network = umt5.create(sizes.text, torch.float32, "cpu").requires_grad_(True)
    return umt5.TextEncode(network, sizes.config.transformer.text_len)
