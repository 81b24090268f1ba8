"""Static sizes of a clip and its sampler: the spec of program ``clip``."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vidc.plugins.signature import Role, Signature
from vidc.runtime.programs.spec import ProgramSpec

_MAX_SIZE = 2**24
"""Upper limit of a size; products of sizes stay within int64."""
IDS = 3
"""Numbers that condition a clip: frame rate less one, motion bucket, noise of the image."""


@dataclass(frozen=True)
class ClipSpec(ProgramSpec):
    """Static sizes of one clip and its sampler.

    Attributes:
        frames: of a clip.
        chunk: frames that one call of the decoder takes.
        latent: channels, height and width of a latent frame.
        video: height and width of an image and of a frame, in pixels.
        image_dim: width of the image's embedding.
        image_encoder: True if the bundle computes that embedding.
        guidance: guidance scale of the first and of the last frame; (1, 1) is without guidance.
        two_passes: True if a step calls the network once for each of its two predictions.
        sigmas: noise levels before each denoising step, and 0 after the last.
        fresh_noise: True for a consistency model: a step ends with the denoised latent and new
            noise. False for Euler steps.
        cache_interval: every so many steps, one runs ``denoise``, which stores its deep features
            in a state. The steps between run ``denoise_shallow``, which reads them (DeepCache). 1
            is without DeepCache.
    """

    default_blocks: ClassVar[int] = 1
    default_fps: ClassVar[int] = 7
    frames: int
    chunk: int
    latent: tuple[int, int, int]
    video: tuple[int, int]
    image_dim: int
    image_encoder: bool
    guidance: tuple[float, float]
    two_passes: bool
    sigmas: tuple[float, ...]
    fresh_noise: bool
    cache_interval: int

    def __post_init__(self) -> None:
        sizes = {
            "frames": (self.frames,),
            "chunk": (self.chunk,),
            "latent": self.latent,
            "video": self.video,
            "image_dim": (self.image_dim,),
        }
        for name, values in sizes.items():
            if not all(0 < value <= _MAX_SIZE for value in values):
                raise ValueError(f"{name} = {list(values)} is not between 1 and {_MAX_SIZE}")
        if self.frames % self.chunk:
            raise ValueError(f"frames = {self.frames} is not a multiple of chunk = {self.chunk}")
        low, high = self.guidance
        if not 1 <= low <= high < math.inf:
            raise ValueError(f"guidance = {list(self.guidance)} does not rise from 1 or more")
        if self.two_passes and not self.guided:
            raise ValueError("two_passes is true without guidance")
        falling = list(self.sigmas) == sorted(set(self.sigmas), reverse=True)
        if len(self.sigmas) < 2 or not falling or self.sigmas[-1] != 0:
            raise ValueError(f"sigmas = {list(self.sigmas)} do not fall to 0")
        if not math.isfinite(self.sigmas[0]):
            raise ValueError(f"sigmas = {list(self.sigmas)} are not finite")
        if not 1 <= self.cache_interval <= self.steps:
            raise ValueError(f"cache_interval = {self.cache_interval} with {self.steps} steps")
        if self.cached and self.two_passes:
            raise ValueError("cache_interval is above 1 with two_passes")

    @property
    def guided(self) -> bool:
        """True if a step combines an unconditional and a conditional prediction."""
        return self.guidance[1] > 1

    @property
    def halves(self) -> int:
        """Predictions of a step."""
        return 2 if self.guided else 1

    @property
    def passes(self) -> int:
        """Calls of ``denoise`` in a step."""
        return 2 if self.two_passes else 1

    @property
    def steps(self) -> int:
        """Number of denoising steps."""
        return len(self.sigmas) - 1

    @property
    def cached(self) -> bool:
        """True if some steps run ``denoise_shallow``."""
        return self.cache_interval > 1

    def denoiser(self, step: int) -> str:
        """Returns the component that a step runs."""
        return "denoise_shallow" if step % self.cache_interval else "denoise"

    @property
    def chunks(self) -> int:
        """Calls of the decoder in a clip."""
        return self.frames // self.chunk

    @property
    def components(self) -> tuple[str, ...]:
        """Components of a clip, in the order of first use."""
        encoder = ("image_encoder",) if self.image_encoder else ()
        denoisers = ("denoise", "denoise_shallow") if self.cached else ("denoise",)
        return (*encoder, "vae_encode", "condition_clip", *denoisers, "vae_decode")

    @property
    def decode_components(self) -> tuple[str, ...]:
        """The decoder of a chunk of frames."""
        return ("vae_decode",)

    @property
    def condition_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The image and its noise, ``[1, 3, H, W]``; its embedding if the bundle has no encoder."""
        image = (1, 3, *self.video)
        embeds = {} if self.image_encoder else {"embeds": (1, 1, self.image_dim)}
        return {"image": image, "image_noise": image, **embeds}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Shape of a clip's noise, ``[N, 1, T, C, h, w]``.

        N is 1 for Euler steps, which start from noise and take no more; with fresh noise it is
        the number of steps.
        """
        return (self.steps if self.fresh_noise else 1, 1, self.frames, *self.latent)

    @property
    def frame_size(self) -> tuple[int, int]:
        """Height and width of a decoded frame."""
        return self.video

    @property
    def latent_frames(self) -> int:
        """Latent frames of a clip."""
        return self.frames

    @property
    def video_frames(self) -> int:
        """Frames of a clip."""
        return self.frames

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        """Calls of a clip's steps and of its decoding; encoding its image is not among them."""
        steps = Counter(self.denoiser(step) for step in range(self.steps))
        return {
            "block": {name: count * self.passes for name, count in steps.items()},
            "vae": {"vae_decode": self.chunks},
        }

    @property
    def workload(self) -> dict[str, Any]:
        """Sizes and noise levels."""
        return {
            **super().workload,
            "frames": self.frames,
            "chunk": self.chunk,
            "guidance": [*self.guidance],
            "sigmas": [*self.sigmas],
            "fresh_noise": self.fresh_noise,
            "cache_interval": self.cache_interval,
        }

    def check(self, signatures: Mapping[str, Signature]) -> None:
        """Compares the sizes with every input and output that a clip uses."""
        for component, expected in self._shapes().items():
            found = {t.name: t.shape for t in signatures[component] if t.role is not Role.STATE}
            if found != expected:
                raise ValueError(
                    f"{component} has tensors {_text(found)}, and the spec's sizes give "
                    f"{_text(expected)}"
                )

    def _shapes(self) -> Mapping[str, Mapping[str, tuple[int, ...]]]:
        """Returns the shapes of every component's inputs and outputs."""
        channels, height, width = self.latent
        image, embeds = (1, 3, *self.video), (1, 1, self.image_dim)
        batch = self.halves // self.passes
        sample = (batch, self.frames, 2 * channels, height, width)
        shapes: dict[str, dict[str, tuple[int, ...]]] = {
            "image_encoder": {"image": image, "embeds": embeds},
            "vae_encode": {"image": image, "latent": (1, *self.latent)},
            "condition_clip": {"embeds": embeds, "ids": (1, IDS)},
            "denoise": {
                "sample": sample,
                "timestep": (1,),
                **({"half": (1,)} if self.two_passes else {}),
                "velocity": (batch, self.frames, *self.latent),
            },
            "denoise_shallow": {
                "sample": sample,
                "timestep": (1,),
                "velocity": (batch, self.frames, *self.latent),
            },
            "vae_decode": {
                "latent": (1, self.chunk, *self.latent),
                "frames": (1, self.chunk, 3, *self.video),
            },
        }
        return {name: shapes[name] for name in self.components}


def _text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
