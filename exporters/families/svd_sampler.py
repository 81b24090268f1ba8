"""Noise levels of Stable Video Diffusion's sampler."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.exporters.table import Table

SIGMA_MAX, SIGMA_MIN, RHO = 700.0, 0.002, 7.0
"""Range and exponent of the noise levels that SVD was trained with."""
_MAX_STEPS = 1000
_MAX_GUIDANCE = 100


@dataclass(frozen=True)
class SvdSampler(Table):
    """Euler steps over Karras noise levels, with guidance that grows over the frames.

    Attributes:
        steps: number of denoising steps.
        guidance: scale of the first and of the last frame; [1, 1] is without guidance.
    """

    steps: int = 25
    guidance: tuple[float, ...] = (1.0, 3.0)

    def __post_init__(self) -> None:
        self.require(
            0 < self.steps <= _MAX_STEPS,
            f"sampler.steps = {self.steps} is not within 1 and {_MAX_STEPS}",
            "use the model's own, such as 25",
        )
        self.require(
            len(self.guidance) == 2 and 1 <= self.guidance[0] <= self.guidance[1] <= _MAX_GUIDANCE,
            f"sampler.guidance = {list(self.guidance)} is not a rising pair from 1 to "
            f"{_MAX_GUIDANCE}",
            "use the model's own, such as [1.0, 3.0]",
        )

    @property
    def guided(self) -> bool:
        """True if a step combines an unconditional and a conditional prediction."""
        return self.guidance[1] > 1

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level before each step, and 0: equation 5 of Karras et al. 2022, in float32."""
        high, low = SIGMA_MAX ** (1 / RHO), SIGMA_MIN ** (1 / RHO)
        last = max(self.steps - 1, 1)
        levels = [(high + step / last * (low - high)) ** RHO for step in range(self.steps)]
        return (*map(_float32, levels), 0.0)

    @property
    def timesteps(self) -> tuple[float, ...]:
        """Timesteps that the UNet takes: a quarter of the noise level's logarithm."""
        return tuple(0.25 * math.log(sigma) for sigma in self.sigmas[:-1])

    @property
    def scheduler_settings(self) -> Mapping[str, Any]:
        """Settings that a diffusers scheduler may not contradict."""
        return {
            "_class_name": "EulerDiscreteScheduler",
            "prediction_type": "v_prediction",
            "timestep_type": "continuous",
            "use_karras_sigmas": True,
            "sigma_max": SIGMA_MAX,
            "sigma_min": SIGMA_MIN,
        }


def _float32(value: float) -> float:
    """Rounds to float32."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
