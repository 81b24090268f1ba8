"""The networks to train: those that vidc's parts build, with initial weights for training."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from demo_model.world import END_ID, LENGTH, PAD_ID, vocabulary
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.program import program_spec
from vidc.exporters.draw import AFTER_SILU
from vidc.exporters.families.causal_video import CausalVideo
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.umt5 import network as umt5
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.parts.wan_vae.network import create
from vidc.runtime.programs.stream import StreamSpec

PRESET = Path(__file__).parents[2] / "configs/presets/demo.toml"
_GAINS = {
    "conv1": AFTER_SILU, "conv2": 0.3 * AFTER_SILU, "proj": 0.3, "conv_out": AFTER_SILU,
    "decoder.conv_out": 0.5,
}  # fmt: skip
"""Gains of convolutions by name or by its last part, where they are not 1."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the model: those of the preset and of its text encoder."""

    config: CausalVideo
    text: TextEncoderConfig
    stream: StreamSpec

    @classmethod
    def read(cls, preset: Path = PRESET) -> "Sizes":
        """Reads a preset, whose sink and window must be whole blocks."""
        config = load_preset(str(preset)).model
        assert isinstance(config, CausalVideo)
        width = config.transformer.text_dim
        text = TextEncoderConfig(
            vocab_size=len(vocabulary()), d_model=width, d_kv=min(32, width // 2), d_ff=2 * width,
            num_layers=3, num_heads=max(2, width // 32), pad_token_id=PAD_ID, eos_token_id=END_ID,
        )  # fmt: skip
        config = replace(config, text_encoder=text)
        return cls(config, text, program_spec(config))


def new_transformer(sizes: Sizes) -> CausalWan:
    """A float32 transformer with Wan's initial weights, whose flow is zero."""
    model = CausalWan(sizes.config.transformer)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
            if name.startswith("condition_embedder"):
                nn.init.normal_(module.weight, std=0.02)
    nn.init.xavier_uniform_(model.patch_embedding.weight.data.flatten(1))
    for table in (model.scale_shift_table, *(layer.scale_shift_table for layer in model.layers)):
        nn.init.normal_(table, std=1 / math.sqrt(sizes.config.transformer.dim))
    nn.init.zeros_(model.proj_out.weight)
    return model


def new_text_encoder(sizes: Sizes) -> umt5.TextEncode:
    """A float32 text encoder: ``input_ids`` and ``attention_mask`` ``[B, L]`` to ``[B, L, E]``."""
    network = umt5.create(sizes.text, torch.float32, "cpu").requires_grad_(True)
    return umt5.TextEncode(network, LENGTH)


def new_vae(sizes: Sizes) -> nn.Module:
    """A float32 VAE whose untrained layers pass on the variance that they get.

    With diffusers' initial weights the signal shrinks from layer to layer until latents hold more
    noise than signal, and the decoder learns to do without them. Here residual branches begin
    small, past frames count less than the present one, and the posterior is narrow.
    """
    vae = create(sizes.config.vae, torch.float32, "cpu").requires_grad_(True).train()
    for name, module in vae.named_modules():
        if isinstance(module, nn.Conv2d | nn.Conv3d):
            _pass_on(module.weight, _GAINS.get(name) or _GAINS.get(name.rsplit(".", 1)[-1], 1.0))
            nn.init.zeros_(module.get_parameter("bias"))
        if name.endswith("time_conv"):
            # Resampling in time begins as a copy of the newest frame, since the first frame of a
            # clip goes around it and shares all later layers.
            weight = module.get_parameter("weight").data.zero_()
            outputs, inputs = weight.shape[:2]
            weight[:, :, -1, 0, 0] = torch.eye(inputs).repeat(outputs // inputs, 1)
    channels = sizes.config.vae.z_dim
    moments = vae.get_submodule("quant_conv")
    moments.get_parameter("weight").data[channels:] *= 0.1
    moments.get_parameter("bias").data[channels:] = -6.0
    return vae


def _pass_on(weight: Tensor, gain: float) -> None:
    taps = torch.ones(1)
    if weight.ndim == 5 and weight.shape[2] > 1:
        taps = torch.full((weight.shape[2],), 0.1)
        taps[-1] = 1.0
        taps = (taps / taps.norm() * math.sqrt(len(taps))).view(1, 1, -1, 1, 1)
    weight.data.normal_(std=gain / math.sqrt(math.prod(weight.shape[1:]))).mul_(taps)
