"""The VAE over whole clips, with gradients: the chunks in which it streams, nothing else.

diffusers' network is causal and keeps what it must remember in a list. A clip goes through it as
its first frame and then all the rest, which vidc's own components do with a block, so what is
trained is what streams, whatever the blocks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from vidc.exporters.parts.wan_vae.config import VaeConfig

LEAST_STD = 0.1
"""Of a channel's deviation over that of the strongest one. A channel that carries nothing is not
blown up to unit variance, where the transformer would have to draw it."""


@dataclass(frozen=True)
class Posterior:
    """Gaussians of latents, float32 ``[B, C, F, h, w]`` each."""

    mean: Tensor
    log_variance: Tensor

    def sample(self, noise: Tensor) -> Tensor:
        """A draw, from unit normal noise of the same shape."""
        return self.mean + torch.exp(0.5 * self.log_variance) * noise

    def divergence(self) -> Tensor:
        """Mean over latents of the divergence from a unit normal, in nats."""
        variance = self.log_variance.exp()
        return 0.5 * (self.mean**2 + variance - 1 - self.log_variance).mean()


@dataclass(frozen=True)
class Statistics:
    """Mean and deviation of each latent channel, as the preset states them."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    @classmethod
    def of(cls, means: Tensor) -> "Statistics":
        """Those of posterior means ``[B, C, F, h, w]``."""
        channels = means.detach().double().transpose(0, 1).flatten(1)
        std = channels.std(1)
        std = std.clamp_min(LEAST_STD * float(std.max()))
        return cls(tuple(channels.mean(1).tolist()), tuple(std.tolist()))

    def normalized(self, latents: Tensor) -> Tensor:
        """Latents ``[B, C, F, h, w]`` as the transformer uses them, ``[B, F, C, h, w]``."""
        mean, std = (torch.tensor(v, device=latents.device).float() for v in (self.mean, self.std))
        shape = (1, -1, 1, 1, 1)
        return ((latents.float() - mean.view(shape)) / std.view(shape)).transpose(1, 2).contiguous()

    def restored(self, latents: Tensor) -> Tensor:
        """The inverse of ``normalized``."""
        mean, std = (torch.tensor(v, device=latents.device).float() for v in (self.mean, self.std))
        shape = (1, -1, 1, 1, 1)
        return latents.transpose(1, 2) * std.view(shape) + mean.view(shape)


def encode(vae: nn.Module, frames: Tensor, config: VaeConfig) -> Posterior:
    """Frames ``[B, 3, 4 F - 3, H, W]`` in -1..1 to F latent frames."""
    moments = vae.get_submodule("quant_conv")(_streamed(vae.get_submodule("encoder"), frames))
    mean, log_variance = moments.float().split(config.z_dim, 1)
    # The bounds of diffusers' DiagonalGaussianDistribution.
    return Posterior(mean, log_variance.clamp(-30, 20))


def decode(vae: nn.Module, latents: Tensor) -> Tensor:
    """Latents ``[B, C, F, h, w]`` to frames, float32 ``[B, 3, 4 F - 3, H, W]``, not clamped."""
    hidden = vae.get_submodule("post_quant_conv")(latents)
    return _streamed(vae.get_submodule("decoder"), hidden).float()


def _streamed(network: nn.Module, x: Tensor) -> Tensor:
    memory: list[Any] = [None] * sum(1 for _ in network.modules())
    chunks = x.tensor_split([1], dim=2) if x.shape[2] > 1 else (x,)
    return torch.cat([network(c, feat_cache=memory, feat_idx=[0]) for c in chunks], 2)
