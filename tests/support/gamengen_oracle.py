"""GameNGen's world with diffusers' UNet, VAE and DDIM scheduler, and the loop over frames.

Written from the published configuration and loop (arnaudstiegler/gameNgen-repro, arXiv
2408.14837); it imports nothing of vidc.
"""

from dataclasses import dataclass, field

import torch
from diffusers import AutoencoderKL, DDIMScheduler, UNet2DConditionModel
from torch import nn


def unet(channels, heads, layers, token_dim, past, buckets):
    """Stable Diffusion 1.4's UNet with more channels in and a class for the past's noise."""
    return UNet2DConditionModel(
        in_channels=4 * (past + 1), out_channels=4, block_out_channels=tuple(channels),
        attention_head_dim=heads, layers_per_block=layers, cross_attention_dim=token_dim,
        num_class_embeds=buckets, sample_size=64,
    ).eval()  # fmt: skip


def vae(channels, layers):
    """Stable Diffusion 1.4's VAE."""
    levels = len(channels)
    return AutoencoderKL(
        block_out_channels=tuple(channels), layers_per_block=layers, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * levels, sample_size=512,
        up_block_types=("UpDecoderBlock2D",) * levels,
    ).eval()  # fmt: skip


def scheduler():
    """Stable Diffusion 1.4's schedule, for a network that predicts v."""
    return DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False,
        set_alpha_to_one=False, steps_offset=1, prediction_type="v_prediction",
    )  # fmt: skip


@dataclass
class World:
    """A state and the step from one frame to the next.

    ``seen`` collects the guided prediction of each step, and ``noised`` the latents after it.
    """

    unet: nn.Module
    vae: nn.Module
    embedding: nn.Embedding
    past: torch.Tensor
    """Past latents ``[past, 4, h, w]``."""
    actions: torch.Tensor
    """Indices of past actions ``[past]``."""
    steps: int = 4
    guidance: float = 1.0
    zeroed: int = 0
    past_noise: float = 0.0
    seen: list = field(default_factory=list)
    noised: list = field(default_factory=list)

    @torch.no_grad()
    def latent(self, action, noise):
        """Returns the next latent ``[1, 4, h, w]`` from its noise, and the past's if it has any."""
        device = self.past.device
        self.actions = torch.cat([self.actions[:-1], torch.tensor([action], device=device)])
        tokens = self.embedding(self.actions[None])
        past, x = self.past.flatten(0, 1)[None], noise[0]
        label = torch.zeros(1, dtype=torch.long, device=device)
        if self.past_noise:
            past = past + self.past_noise * noise[1]
            label += min(round(self.past_noise / (0.7 / 10)), 9)
        schedule = scheduler()
        schedule.set_timesteps(self.steps)
        for time in schedule.timesteps:
            given = torch.cat([past, x], 1)
            v = self.unet(given, time.to(device), tokens, class_labels=label).sample
            if self.guidance > 1:
                given = given.clone()
                given[:, : self.zeroed or past.shape[1]] = 0
                without = self.unet(given, time.to(device), tokens, class_labels=label).sample
                v = without + self.guidance * (v - without)
            x = schedule.step(v, time, x).prev_sample
            self.seen.append(v)
            self.noised.append(x)
        self.past = torch.cat([self.past[1:], x])
        self.actions = torch.cat([self.actions[1:], self.actions[-1:]])
        return x

    @torch.no_grad()
    def decode(self, latent):
        """Returns a frame ``[1, 3, H, W]``, from -1 to 1 but for overshoot."""
        return self.vae.decode(latent / self.vae.config.scaling_factor).sample

    @torch.no_grad()
    def encode(self, images):
        """Returns the latents ``[n, 4, h, w]`` of images ``[n, 3, H, W]`` from -1 to 1."""
        encoded = [self.vae.encode(image[None]).latent_dist.mode() for image in images]
        return torch.cat(encoded) * self.vae.config.scaling_factor
