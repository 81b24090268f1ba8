"""DDIM steps over the noise schedule of Stable Diffusion 1.4."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from vidc.exporters.table import Table

_TRAINED = 1000
"""Timesteps in training."""
_BETAS = (0.00085, 0.012)
"""First and last beta, between which their square roots are spaced evenly."""
_OFFSET = 1
"""Timestep of the last step."""
_MAX_GUIDANCE = 100


@dataclass(frozen=True)
class DdimSampler(Table):
    """Deterministic DDIM steps (arXiv 2010.02502) of a network that predicts v.

    Attributes:
        steps: denoising steps of a frame.
        guidance: scale of classifier-free guidance by past latents; 1 is without it.
        zeroed: channels of the past, from the oldest latent on, that are zeros in the
            unconditional prediction; 0 for all of them. GameNGen-repro's code zeroes 9.
        past_noise: standard deviation of the noise that past latents get.
    """

    steps: int = 4
    guidance: float = 1.0
    zeroed: int = 0
    past_noise: float = 0.0

    def __post_init__(self) -> None:
        self.require(
            0 < self.steps < _TRAINED,
            f"sampler.steps = {self.steps} is not between 1 and {_TRAINED - 1}",
            "use the model's own, such as 4 or 10",
        )
        self.require(
            1 <= self.guidance <= _MAX_GUIDANCE,
            f"sampler.guidance = {self.guidance} is not between 1 and {_MAX_GUIDANCE}",
            "use 1 for none, or the model's own, such as 1.5",
        )
        self.require(
            self.zeroed >= 0 and (self.zeroed == 0 or self.guided),
            f"sampler.zeroed = {self.zeroed} with sampler.guidance = {self.guidance}",
            "leave sampler.zeroed out, or set sampler.guidance above 1",
        )
        self.require(
            self.past_noise >= 0,
            f"sampler.past_noise = {self.past_noise} is negative",
            "set it to 0 for none",
        )

    @property
    def guided(self) -> bool:
        """True if a step combines an unconditional and a conditional prediction."""
        return self.guidance > 1

    @property
    def timesteps(self) -> tuple[int, ...]:
        """Timestep of each step: evenly spaced, the last one at 1 (``leading`` in diffusers)."""
        stride = _TRAINED // self.steps
        return tuple(step * stride + _OFFSET for step in reversed(range(self.steps)))

    @property
    def alphas(self) -> tuple[float, ...]:
        """Share of a latent's variance that is signal, before each step and after the last.

        It is ``alphas_cumprod`` in diffusers. A step ends at the timestep of the next step, the
        last one at timestep 0.
        """
        first, last = (beta**0.5 for beta in _BETAS)
        width = (last - first) / (_TRAINED - 1)
        betas = ((first + step * width) ** 2 for step in range(_TRAINED))
        products = [*accumulate((1 - beta for beta in betas), lambda a, b: a * b)]
        return tuple(products[time] for time in (*self.timesteps, 0))

    @property
    def scheduler_settings(self) -> Mapping[str, Any]:
        """Settings that a diffusers scheduler may not contradict."""
        return {
            "_class_name": "DDIMScheduler",
            "num_train_timesteps": _TRAINED,
            "beta_start": _BETAS[0],
            "beta_end": _BETAS[1],
            "beta_schedule": "scaled_linear",
            "prediction_type": "v_prediction",
            "timestep_spacing": "leading",
            "steps_offset": _OFFSET,
            "set_alpha_to_one": False,
            "clip_sample": False,
            "rescale_betas_zero_snr": False,
            "thresholding": False,
        }
