"""The public code's flow matching: a table of noise levels, looked up by the nearest timestep."""

import torch
from torch import Tensor

from vidc.exporters.config import TRAINING_STEPS, SamplerConfig


class Sampler:
    """Steps of the sampler on a device.

    Attributes:
        timesteps: of the denoising steps, float32 on the CPU, from noise to clean.
    """

    def __init__(self, config: SamplerConfig, device: torch.device) -> None:
        even = torch.linspace(1.0, 0.0, TRAINING_STEPS + 1)[:-1]
        sigmas = config.shift * even / (1 + (config.shift - 1) * even)
        levels = sigmas * TRAINING_STEPS
        self.timesteps = levels[TRAINING_STEPS - torch.tensor(config.steps)]
        self._sigmas = sigmas.to(device)
        self._levels = levels.to(device)

    def clean(self, flow: Tensor, noisy: Tensor, timestep: Tensor) -> Tensor:
        """The clean latent that a flow points to, ``x_t - sigma flow``, computed in float64.

        Args:
            flow: ``[B, F, C, h, w]``.
            noisy: the same.
            timestep: ``[B, F]``.
        """
        sigma = _nearest(self._sigmas.double(), self._levels.double(), timestep.flatten())
        clean = noisy.flatten(0, 1).double() - sigma * flow.flatten(0, 1).double()
        return clean.to(flow.dtype).view(flow.shape)

    def noised(self, clean: Tensor, noise: Tensor, timestep: Tensor) -> Tensor:
        """``(1 - sigma) x_0 + sigma noise`` for the step at a timestep ``[]``.

        Args:
            clean: ``[B, F, C, h, w]``.
            noise: the same.
            timestep: one of ``timesteps``.
        """
        flat = clean.flatten(0, 1)
        steps = timestep * torch.ones(len(flat), device=clean.device, dtype=torch.long)
        sigma = _nearest(self._sigmas, self._levels, steps)
        noisy = (1 - sigma) * flat + sigma * noise.flatten(0, 1)
        return noisy.type_as(noise).view(clean.shape)


def _nearest(sigmas: Tensor, levels: Tensor, timesteps: Tensor) -> Tensor:
    index = torch.argmin((levels[None] - timesteps[:, None]).abs(), dim=1)
    return sigmas[index].reshape(-1, 1, 1, 1)
