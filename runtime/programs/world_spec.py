"""Static sizes of a world model and its two samplers: the spec of program ``world``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.plugins.signature import Role, Signature
from vidc.runtime.programs.action_spec import ActionSpec, Draw
from vidc.runtime.programs.pixels import COLORS

_MAX_SIZE = 2**24


@dataclass(frozen=True)
class SamplerSpec:
    """Steps of a stochastic EDM sampler (arXiv 2206.00364, algorithm 2) from noise to a frame.

    Attributes:
        sigmas: noise level before each step, falling; the last step ends at 0.
        gammas: share by which each step first raises its noise level.
        churn_noise: standard deviation of the noise that raises it.
        past_noise: sigma of the noise that past frames get before each step, on top of that of
            earlier steps.
        order: 1 for Euler's method, 2 for Heun's.
    """

    sigmas: tuple[float, ...]
    gammas: tuple[float, ...]
    churn_noise: float
    past_noise: float
    order: int

    def __post_init__(self) -> None:
        sigmas = self.sigmas
        if not sigmas or list(sigmas) != sorted(set(sigmas), reverse=True) or sigmas[-1] <= 0:
            raise ValueError(f"sigmas = {list(sigmas)} do not fall to a last one above 0")
        if len(self.gammas) != len(sigmas):
            raise ValueError(f"{len(self.gammas)} gammas for {len(sigmas)} sigmas")
        levels = (*sigmas, *self.gammas, self.churn_noise, self.past_noise)
        if not all(0 <= level < math.inf for level in levels):
            raise ValueError("a sigma, gamma or noise level is negative or not finite")
        if self.order not in (1, 2):
            raise ValueError(f"order = {self.order} is not 1 or 2")

    @property
    def calls(self) -> int:
        """Calls of the network; Heun's method makes two for each step but the last."""
        return self.order * (len(self.sigmas) - 1) + 1

    def draws(self, network: str, frame: tuple[int, ...], past: tuple[int, ...]) -> list[Draw]:
        """Returns the draws of one frame, in their order.

        Args:
            network: first word of their names.
            frame: shape of the frame.
            past: shape of the past frames.
        """
        found = [Draw(f"{network}.x", frame)]
        for step, gamma in enumerate(self.gammas):
            if gamma > 0:
                found.append(Draw(f"{network}.churn.{step}", frame))
            if self.past_noise > 0:
                # The public sampler draws offset noise too, and multiplies it by 0.
                found.append(Draw(f"{network}.offset.{step}", (*past[:2], 1, 1)))
                found.append(Draw(f"{network}.past.{step}", past))
        return found


@dataclass(frozen=True)
class WorldSpec(ActionSpec):
    """Static sizes of a world model.

    Attributes:
        low: height and width of a frame that the denoiser makes, before any upsampler.
        factor: height and width of a frame over those of ``low``; 1 without an upsampler.
        past: past low-resolution frames, and actions, that condition the next one.
        past_full: past frames that condition the upsampler; 0 if there is none.
        actions: inputs of an action.
        one_hot: True if exactly one input of an action is 1, False if any may be.
        denoise: sampler of low-resolution frames.
        upsample: sampler of the upsampler; None if there is none.
    """

    low: tuple[int, int]
    factor: int
    past: int
    past_full: int
    actions: int
    one_hot: bool
    denoise: SamplerSpec
    upsample: SamplerSpec | None

    def __post_init__(self) -> None:
        sizes = (*self.low, self.factor, self.past, self.actions)
        if not all(0 < size <= _MAX_SIZE for size in sizes) or not 0 <= self.past_full <= _MAX_SIZE:
            raise ValueError(f"a size is not between 1 and {_MAX_SIZE}")
        if (self.upsample is None) != (self.past_full == 0):
            raise ValueError("an upsampler has a sampler and past frames, or neither")
        if self.upsample is None and self.factor != 1:
            raise ValueError(f"factor = {self.factor} without an upsampler")
        if self.upsample is not None and self.upsample.past_noise > 0:
            raise ValueError("the upsampler's past frames have no noise")

    @property
    def components(self) -> tuple[str, ...]:
        """``denoise`` and, with an upsampler, ``upsample``."""
        return ("denoise",) if self.upsample is None else ("denoise", "upsample")

    @property
    def decode_components(self) -> tuple[str, ...]:
        """The network that makes frames: a world has no decoder."""
        return ("denoise",)

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return self.factor * self.low[0], self.factor * self.low[1]

    @property
    def low_shape(self) -> tuple[int, ...]:
        """Shape of a low-resolution frame, ``[1, 3, h, w]``."""
        return (1, COLORS, *self.low)

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """Shape of a frame, ``[1, 3, H, W]``."""
        return (1, COLORS, *self.frame_size)

    @property
    def past_shape(self) -> tuple[int, ...]:
        """Shape of the past low-resolution frames, ``[1, 3 past, h, w]``."""
        return (1, COLORS * self.past, *self.low)

    @property
    def past_full_shape(self) -> tuple[int, ...]:
        """Shape of the upsampler's past frames, ``[1, 3 past, H, W]``."""
        return (1, COLORS * self.past_full, *self.frame_size)

    @property
    def draws(self) -> tuple[Draw, ...]:
        """All draws of a frame, in their order: the denoiser's, then the upsampler's.

        The public code makes the same draws in the same order, so ``step`` can take its noise.
        """
        found = self.denoise.draws("denoise", self.low_shape, self.past_shape)
        if self.upsample is not None:
            found += self.upsample.draws("upsample", self.frame_shape, self.past_full_shape)
        return tuple(found)

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        """Calls of a frame; converting it to 8 bits calls no engine."""
        made = {"denoise": self.denoise.calls}
        if self.upsample is not None:
            made["upsample"] = self.upsample.calls
        return {"block": made, "pixels": {}}

    @property
    def full_inputs(self) -> Mapping[str, float]:
        """Sigma of the first step."""
        return {"sigma": self.denoise.sigmas[0]}

    @property
    def workload(self) -> dict[str, Any]:
        """Sizes and calls of the networks."""
        return {**super().workload, "past": self.past, **self.calls["block"]}

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Compares the sizes with every tensor of both engines."""
        actions = (1, self.past, self.actions)
        denoise = {
            "x": self.low_shape, "sigma": (1,), "past.low": self.past_shape, "actions": actions,
            "denoised": self.low_shape,
        }  # fmt: skip
        noised = {"past_noise": (1,), "added": self.past_shape}
        upsample = {
            "x": self.frame_shape, "sigma": (1,), "low": self.frame_shape,
            "past.full": self.past_full_shape, "denoised": self.frame_shape,
        }  # fmt: skip
        if self.denoise.past_noise > 0 or "added" in signatures["denoise"]:
            denoise |= noised
        _compare("denoise", signatures["denoise"], denoise)
        if self.upsample is not None:
            _compare("upsample", signatures["upsample"], upsample)


def _compare(component: str, signature: Signature, expected: Mapping[str, tuple[int, ...]]) -> None:
    found = {tensor.name: tensor.shape for tensor in signature}
    if found != expected:
        raise ValueError(f"{component} has tensors {found}, and the spec's sizes give {expected}")
    if written := [t.name for t in signature if t.role is Role.STATE and t.writes]:
        raise ValueError(f"{component} writes {', '.join(written)}, which the program does")
