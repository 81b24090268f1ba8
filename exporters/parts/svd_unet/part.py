"""Part ``svd_unet``: the denoising UNet of Stable Video Diffusion over the frames of one clip."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.svd_unet.config import UnetConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.load import Weights
    from vidc.exporters.component import Component

_FLOPS_A_PIXEL = 44.8e12 / (14 * 72 * 128)
"""FLOPs of a pass for one latent pixel of one frame at 320 channels, from 14 frames of 576x1024."""
_CHANNELS = 320
_SHALLOW = 0.4
"""Share of a pass that the first resolution takes, for DeepCache."""
_ACTIVATIONS = 20
"""Activations at full resolution that a pass holds at once, in latent pixels x channels."""
_PARAMETERS = 1524623082
"""Parameters of the network at the released sizes."""


@dataclass(frozen=True)
class SvdUnetPart(Part):
    """A UNet over all frames of a clip at once.

    Attributes:
        config: sizes of the network.
        frames: of a clip.
        latent: height and width of a latent frame.
        halves: 2 with guidance, an unconditional and a conditional prediction; otherwise 1.
        batch: halves that one pass computes.
        deep_cache: True to add the component ``denoise_shallow``, for DeepCache.
    """

    group: ClassVar[str] = "unet"
    config: UnetConfig
    frames: int
    latent: tuple[int, int]
    halves: int
    batch: int
    deep_cache: bool = False

    @property
    def component_names(self) -> tuple[str, ...]:
        """``condition_clip``, once a clip, ``denoise``, and with DeepCache its shallow form."""
        names = ("condition_clip", "denoise")
        return (*names, "denoise_shallow") if self.deep_cache else names

    def module(self) -> "nn.Module":
        """Returns an ``SvdUnet``."""
        from vidc.exporters.parts.svd_unet.network import SvdUnet

        return SvdUnet(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of an ``SvdUnet``."""
        from vidc.exporters.parts.svd_unet.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which attention is peaked and every branch counts.

        Branches are half as large as what they are added to. With branches twice as large, small
        errors grow from layer to layer.
        """
        from vidc.exporters.draw import AFTER_SILU
        from vidc.exporters.parts.spatio_temporal_weights import random_weight

        after_silu = (".conv1.", ".conv2.", "linear_2.", "time_emb_proj.", "conv_out.")
        gain = AFTER_SILU if any(part in name for part in after_silu) else 1.0
        if ".attn1.to_q." in name or ".attn1.to_k." in name:
            gain = 1.2
        if any(part in name for part in (".conv2.", ".to_out.", ".net.2.")):
            gain *= 0.5
        return random_weight(name, shape, seed, gain)

    def load(
        self, checkpoint: Path, loras: Sequence[Path], layouts: "Sequence[Layout]", ema: bool
    ) -> "Weights":
        """Reads the weights, and compares the file's name with the preset's number of frames.

        The released variants, for 14 and 25 frames, have weights of equal shapes.

        Raises:
            BuildError: ``VIDC-CHECKPOINT-CONFIG``, the name is that of the other variant.
            VidcError: what ``load_weights`` raises.
        """
        from vidc.exporters.parts.svd_unet.names import require_frames

        require_frames(checkpoint, self.config.num_frames)
        return super().load(checkpoint, loras, layouts, ema)

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings in the config of diffusers' UNet."""
        from vidc.exporters.parts.svd_unet.names import config_settings

        return {"UNetSpatioTemporalConditionModel": config_settings(self.config)}

    @property
    def prefixes(self) -> Mapping[str, str]:
        """Its tensors in a file of the whole pipeline."""
        return {"model.diffusion_model.": ""}

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.svd_unet.names import disagreements

        return disagreements(found, expected)

    @property
    def weights_elements(self) -> int:
        """Parameters, which grow with the square of the channels."""
        return round(_PARAMETERS * (self.config.channels[0] / _CHANNELS) ** 2)

    def working_elements(self, component: str) -> int:
        """Elements of activations of a pass; ``condition_clip`` has next to none."""
        return 0 if component == "condition_clip" else self.playing_elements

    @property
    def playing_elements(self) -> int:
        """Elements of activations of a pass, and of the features that DeepCache keeps."""
        features = self.config.channels[1] if self.deep_cache else 0
        return self._pixels * (_ACTIVATIONS * self.config.channels[0] + features)

    @property
    def _pixels(self) -> int:
        """Latent pixels of all frames of a pass."""
        return self.batch * self.frames * self.latent[0] * self.latent[1]

    def rows(self, linear: str) -> int:
        """Rows that a pass multiplies with a Linear's weight: the pixels of its resolution."""
        if ".attn2." in linear or "time_pos_embed" in linear or "add_embedding" in linear:
            return 0
        if "time_emb" in linear:
            return 1
        kind, level, *_ = linear.split(".")
        last = len(self.config.channels) - 1
        halvings = last
        if kind in ("down_blocks", "up_blocks"):
            halvings = int(level) if kind == "down_blocks" else last - int(level)
        # A sampler's convolution computes the pixels of the next resolution.
        halvings += (".downsamplers." in linear) - (".upsamplers." in linear)
        return int(self._pixels // 4**halvings)

    def is_shallow(self, layer: str) -> bool:
        """Returns True for a layer that ``denoise_shallow`` runs."""
        deep = ("down_blocks.", "mid_block.", "up_blocks.")
        first = ("down_blocks.0.resnets", "down_blocks.0.attentions", "up_blocks.3.")
        return layer.startswith(first) or not layer.startswith(deep)

    @property
    def convolutions(self) -> Mapping[str, tuple[int, int]]:
        """Every convolution, as the elements of its weight and the pixels of its resolution."""
        found = {}
        for name, shape in self.shapes().items():
            if len(shape) < 4:
                continue
            # conv_in and conv_out see full resolution.
            owner = name if "_block" in name else "down_blocks.0."
            found[name] = (math.prod(shape), self.rows(owner))
        return found

    @property
    def other_products(self) -> tuple[tuple[int, int], ...]:
        """Every convolution, as a matmul over the pixels of its resolution."""
        return tuple(self.convolutions.values())

    def pass_flops(self, shallow: bool = False) -> float:
        """Estimates one pass that computes one of the predictions of guidance."""
        pixels = self._pixels // self.batch
        flops = pixels * _FLOPS_A_PIXEL * (self.config.channels[0] / _CHANNELS) ** 2
        return flops * _SHALLOW if shallow else flops
