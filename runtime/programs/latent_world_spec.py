"""Static sizes of a world in latents and its sampler: the spec of program ``latent_world``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.plugins.signature import Signature
from vidc.runtime.programs.action_spec import ActionSpec, Draw
from vidc.runtime.programs.ddim import velocity_steps
from vidc.runtime.programs.pixels import COLORS

_MAX_SIZE = 2**24
_BETWEEN = ("action.kv", "step.shifts")
"""States that one engine writes for another; the spec does not know their sizes."""


@dataclass(frozen=True)
class LatentWorldSpec(ActionSpec):
    """Static sizes of a world in latents.

    Attributes:
        latent: channels, height and width of a latent.
        video: height and width of a frame, in pixels.
        past: past latents, and actions, that condition the next latent.
        actions: inputs of an action.
        one_hot: True if exactly one input of an action is 1, False if any may be.
        timesteps: of each denoising step, falling.
        alphas: share of a latent's variance that is signal, before each step and after the last
            (``alphas_cumprod`` in diffusers).
        guidance: scale of guidance by past latents; 1 is without it.
        past_noise: standard deviation of the noise that past latents get.
        bucket: class by which the network is told that noise level.
    """

    latent: tuple[int, int, int]
    video: tuple[int, int]
    past: int
    actions: int
    one_hot: bool
    timesteps: tuple[int, ...]
    alphas: tuple[float, ...]
    guidance: float
    past_noise: float
    bucket: int

    def __post_init__(self) -> None:
        sizes = (*self.latent, *self.video, self.past, self.actions)
        if not all(0 < size <= _MAX_SIZE for size in sizes):
            raise ValueError(f"a size is not between 1 and {_MAX_SIZE}")
        times = list(self.timesteps)
        if not times or times != sorted(set(times), reverse=True) or times[-1] < 0:
            raise ValueError(f"timesteps = {times} do not fall to 0 or more")
        alphas = list(self.alphas)
        if len(alphas) != len(times) + 1 or alphas != sorted(set(alphas)):
            raise ValueError(f"alphas = {alphas} do not rise over {len(times)} steps")
        if alphas[0] <= 0 or alphas[-1] > 1:
            raise ValueError(f"alphas = {alphas} are not above 0 and at most 1")
        if not 1 <= self.guidance < math.inf or not 0 <= self.past_noise < math.inf:
            raise ValueError(f"guidance = {self.guidance}, past_noise = {self.past_noise}")
        if not 0 <= self.bucket <= _MAX_SIZE:
            raise ValueError(f"bucket = {self.bucket} is negative or too large")

    @property
    def halves(self) -> int:
        """Predictions of a step: 2 with guidance, the unconditional one first."""
        return 2 if self.guidance > 1 else 1

    @property
    def steps(self) -> tuple[tuple[float, float], ...]:
        """Factors of the latent and of the prediction v in each DDIM step."""
        return velocity_steps(self.alphas)

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of a latent, ``[1, C, h, w]``."""
        return (1, *self.latent)

    @property
    def past_shape(self) -> tuple[int, ...]:
        """Shape of the past latents, ``[1, C past, h, w]``."""
        return (1, self.latent[0] * self.past, *self.latent[1:])

    @property
    def components(self) -> tuple[str, ...]:
        """Components of a world, in the order of first use."""
        return ("vae_encode", "condition_frame", "denoise", "vae_decode")

    @property
    def decode_components(self) -> tuple[str, ...]:
        """The decoder of a latent."""
        return ("vae_decode",)

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a frame."""
        return self.video

    @property
    def draws(self) -> tuple[Draw, ...]:
        """All draws of a frame: its latent, then the noise of past latents, if they get any."""
        noised = [Draw("denoise.past", self.past_shape)] if self.past_noise > 0 else []
        return (Draw("denoise.x", self.latent_shape), *noised)

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        """Calls of a frame's latent, and of its decoding."""
        made = {"condition_frame": 1, "denoise": len(self.timesteps)}
        return {"block": made, "vae": {"vae_decode": 1}}

    @property
    def workload(self) -> dict[str, Any]:
        """Sizes, and the calls of a frame."""
        sizes = {"past": self.past, "guidance": self.guidance, "past_noise": self.past_noise}
        return {**super().workload, **sizes, "steps": len(self.timesteps)}

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Compares the sizes with every tensor that the program uses."""
        image, frames = (1, COLORS, *self.video), (1, 1, COLORS, *self.video)
        noised = self.past_noise > 0
        expected: dict[str, dict[str, tuple[int, ...]]] = {
            "vae_encode": {"image": image, "latent": self.latent_shape},
            "condition_frame": {
                "timesteps": (len(self.timesteps),),
                **({"bucket": (1,)} if noised else {}),
                "actions": (1, self.past, self.actions),
            },
            "denoise": {
                "x": self.latent_shape,
                "step": (1,),
                **({"added": self.past_shape} if noised else {}),
                "past": self.past_shape,
                "velocity": (self.halves, *self.latent),
            },
            "vae_decode": {"latent": self.latent_shape, "frames": frames},
        }
        for component, tensors in expected.items():
            found = {
                tensor.name: tensor.shape
                for tensor in signatures[component]
                if tensor.name not in _BETWEEN
            }
            if found != tensors:
                raise ValueError(
                    f"{component} has tensors {found}, and the spec's sizes give {tensors}"
                )
