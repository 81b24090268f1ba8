"""Noise levels of Stable Video Diffusion's sampler."""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.exporters.table import Table

SIGMA_MAX, SIGMA_MIN, RHO = 700.0, 0.002, 7.0
"""Range and exponent of the noise levels that SVD was trained with."""
EULER, CONSISTENCY = _KINDS = ("euler", "consistency")
"""Values of ``sampler.kind``."""
CONSISTENCY_LEVELS = 40
"""Karras noise levels that AnimateLCM-SVD was distilled on: the most steps that it takes."""
_MAX_STEPS = {EULER: 1000, CONSISTENCY: CONSISTENCY_LEVELS}
_MAX_GUIDANCE = 100


@dataclass(frozen=True)
class SvdSampler(Table):
    """Steps over Karras noise levels, with guidance that grows over the frames.

    Attributes:
        kind: ``euler``, or ``consistency`` for AnimateLCM-SVD: each step ends with the denoised
            latent and fresh noise.
        steps: number of denoising steps.
        guidance: scale of the first and of the last frame; [1, 1] is without guidance.
        cache_interval: the whole UNet runs every so many steps. The steps between run its
            full-resolution blocks alone, over the deeper features that the last whole step left
            (DeepCache). 1 is without it.
    """

    kind: str = EULER
    steps: int = 25
    guidance: tuple[float, ...] = (1.0, 3.0)
    cache_interval: int = 1

    def __post_init__(self) -> None:
        self.require(
            self.kind in _KINDS,
            f"sampler.kind = {self.kind!r} is none of {', '.join(_KINDS)}",
            f"use {EULER}, or {CONSISTENCY} for the weights of AnimateLCM-SVD",
        )
        most = _MAX_STEPS[self.kind]
        self.require(
            0 < self.steps <= most,
            f"sampler.steps = {self.steps} is not between 1 and {most}",
            f"use the model's own, such as {25 if self.kind == EULER else 4}",
        )
        self.require(
            len(self.guidance) == 2 and 1 <= self.guidance[0] <= self.guidance[1] <= _MAX_GUIDANCE,
            f"sampler.guidance = {list(self.guidance)} is not a rising pair from 1 to "
            f"{_MAX_GUIDANCE}",
            "use the model's own, such as [1.0, 3.0]",
        )
        self.require(
            1 <= self.cache_interval <= self.steps,
            f"sampler.cache_interval = {self.cache_interval} is not between 1 and the "
            f"{self.steps} steps",
            f"use 1, without DeepCache, or at most {self.steps}",
        )

    @property
    def guided(self) -> bool:
        """True if a step combines an unconditional and a conditional prediction."""
        return self.guidance[1] > 1

    @property
    def full_steps(self) -> int:
        """Steps that run the whole UNet."""
        return -(-self.steps // self.cache_interval)

    @property
    def sigmas(self) -> tuple[float, ...]:
        """Noise level before each step, and 0: equation 5 of Karras et al. 2022, in float32.

        A consistency model takes every ``40 // steps``-th of its 40 levels, as the scheduler of
        G-U-N/AnimateLCM does.
        """
        high, low = SIGMA_MAX ** (1 / RHO), SIGMA_MIN ** (1 / RHO)
        last, stride = max(self.steps - 1, 1), 1
        if self.kind == CONSISTENCY:
            last, stride = CONSISTENCY_LEVELS - 1, CONSISTENCY_LEVELS // self.steps
        places = [step * stride / last for step in range(self.steps)]
        levels = [(high + place * (low - high)) ** RHO for place in places]
        return (*map(_float32, levels), 0.0)

    @property
    def timesteps(self) -> tuple[float, ...]:
        """Timesteps that the UNet takes: a quarter of the noise level's logarithm."""
        return tuple(0.25 * math.log(sigma) for sigma in self.sigmas[:-1])

    @property
    def scheduler_settings(self) -> Mapping[str, Any]:
        """Settings that a diffusers scheduler may not contradict.

        Those of Stable Video Diffusion for both kinds: AnimateLCM-SVD has a UNet alone and is run
        in the pipeline that it was distilled from.
        """
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
