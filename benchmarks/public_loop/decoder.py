"""The public code's streaming VAE decoder: one latent frame after the other."""

from types import MethodType
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.parts.wan_vae.config import VaeConfig

Memory = list[Any]
"""The last two frames that each causal convolution was given, None before a clip starts."""


class Decoder:
    """diffusers' decoder, whose operations are the public code's but for the norms."""

    def __init__(self, config: VaeConfig, vae: nn.Module, backend: str | None) -> None:
        self._config = config
        self._enter = vae.get_submodule("post_quant_conv")
        self._decoder = vae.get_submodule("decoder")
        for module in self._decoder.modules():
            if isinstance(module, WanRMS_norm):
                # diffusers normalizes in float32, which takes longer in half precision.
                module.forward = MethodType(_normalize, module)
        if backend is not None:
            self._decoder.compile(backend=backend)

    def memory(self) -> Memory:
        """Memory of a clip that starts."""
        return [None] * sum(isinstance(m, WanCausalConv3d) for m in self._decoder.modules())

    def __call__(self, latent: Tensor, memory: Memory) -> Tensor:
        """The next frames of one clip, whose memory moves on.

        ``[F, C, h, w]``, normalized as the transformer uses it, to float32 ``[3, 4 F, H, W]`` in
        [-1, 1], three frames fewer at the start of the clip.
        """
        weight = self._enter.get_parameter("weight")
        latent = latent.to(weight.dtype).transpose(0, 1)[None]
        mean = torch.tensor(self._config.latents_mean).to(weight).view(1, -1, 1, 1, 1)
        inverse = 1.0 / torch.tensor(self._config.latents_std).to(weight).view(1, -1, 1, 1, 1)
        x = self._enter(latent / inverse + mean)
        frames: Tensor = self._decoder(x[:, :, :1], memory, [0])
        for index in range(1, x.shape[2]):
            frames = torch.cat([frames, self._decoder(x[:, :, index : index + 1], memory, [0])], 2)
        return frames.float().clamp_(-1, 1).squeeze(0)


def _normalize(norm: WanRMS_norm, x: Tensor) -> Tensor:
    out: Tensor = F.normalize(x, dim=1) * norm.scale * norm.gamma + norm.bias
    return out
