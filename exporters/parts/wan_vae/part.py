"""Part ``wan_vae``: diffusers' Wan VAE as streaming components with explicit caches."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.parts.streaming_vae import TEMPORAL_STRIDE, StreamingVae
from vidc.exporters.parts.wan_vae.config import SPATIAL_STRIDE, VaeConfig

if TYPE_CHECKING:
    from torch import nn

    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.component import Component

_ACTIVATIONS = 7
"""Activations at full resolution that a component holds at once."""
_LARGE = 2**27
"""Elements of an activation above which decoding in chunks saves enough memory to be worth it."""
_FLOPS_A_PIXEL = 36e12 / (12 * 480 * 832)
"""FLOPs of decoding a pixel at base width 96; they grow with the square of the width."""


@dataclass(frozen=True)
class WanVaePart(StreamingVae):
    """A Wan VAE, block by block."""

    group: ClassVar[str] = "vae"
    libraries: ClassVar[tuple[str, ...]] = ("diffusers",)
    # Its error is an eighth of bf16's at the same speed, small enough for Winograd's algorithm.
    instead_of_bf16: ClassVar[str] = "fp16"
    config: VaeConfig

    @property
    def channels(self) -> int:
        """Channels of a latent."""
        return self.config.z_dim

    @property
    def spatial_stride(self) -> int:
        """Pixels to a latent."""
        return SPATIAL_STRIDE

    @property
    def decoded_chunk(self) -> int | None:
        """Video frames that the decoder takes at once at full resolution; None for a whole block.

        Small videos are decoded whole: each chunk adds nodes to the graph and time to its build.
        """
        return TEMPORAL_STRIDE if self.pixels * self.config.base_dim > _LARGE else None

    def network(self, precision: str) -> "nn.Module":
        """Returns diffusers' ``AutoencoderKLWan`` on the meta device."""
        from vidc.exporters.models import PRECISIONS
        from vidc.exporters.parts.wan_vae.network import create

        return create(self.config, PRECISIONS[precision], "meta")

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of such a VAE."""
        from vidc.exporters.parts.wan_vae.components import components

        return components(self, network)

    def random_weights(self, seed: int) -> "dict[str, LazyTensor]":
        """Draws weights under which decoded noise fills the range of pixels."""
        import torch

        from vidc.exporters.checkpoint.lazy import LazyTensor
        from vidc.exporters.parts.wan_vae.random_weights import random_state_dict

        drawn = random_state_dict(self.config, seed, torch.float32)
        return {name: LazyTensor.of(tensor) for name, tensor in drawn.items()}

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings in the config of diffusers' autoencoder, with its statistics of latents."""
        sizes = self.config
        settings = {
            "base_dim": sizes.base_dim,
            "decoder_base_dim": sizes.base_dim,
            "z_dim": sizes.z_dim,
            "dim_mult": sizes.dim_mult,
            "num_res_blocks": sizes.res_blocks,
            "temperal_downsample": sizes.temporal_downsample,
            "dropout": ...,
            "latents_mean": sizes.latents_mean,
            "latents_std": sizes.latents_std,
            "in_channels": 3,
            "out_channels": 3,
            "scale_factor_temporal": TEMPORAL_STRIDE,
            "scale_factor_spatial": SPATIAL_STRIDE,
        }
        return {"AutoencoderKLWan": settings}

    @property
    def playing_elements(self) -> int:
        """Elements of activations at full resolution and base width.

        On an H200, 480x832 at batch 2 in bf16 took 13 GB at most, with 1.84 GB for an activation at
        full resolution.
        """
        return _ACTIVATIONS * self.pixels * self.config.base_dim

    def block_flops(self) -> float:
        """Decoding one block, in round numbers."""
        return self.pixels * _FLOPS_A_PIXEL * (self.config.base_dim / 96) ** 2
