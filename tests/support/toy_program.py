"""Program of another package: one frame a block, a state that is no ring, and no prompts."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from vidc.runtime.graphs import Runners
from vidc.runtime.inputs import LATENT, NOISE
from vidc.runtime.noise import block_noise
from vidc.runtime.programs.base import FRAMES, LATENTS, Session
from vidc.runtime.programs.spec import ProgramSpec


@dataclass(frozen=True)
class ClipSpec(ProgramSpec):
    width: int
    size: int

    components = ("advance", "paint")
    decode_components = ("paint",)

    @property
    def calls(self) -> Mapping[str, Mapping[str, int]]:
        return {"block": {"advance": 1}, "paint": {"paint": 1}}

    @property
    def noise_shape(self) -> tuple[int, ...]:
        return (1, 1, self.width)

    @property
    def frame_size(self) -> tuple[int, int]:
        return (self.size, self.size)


class Clip(Session[ClipSpec]):
    Spec = ClipSpec
    teacher_forced: ClassVar[tuple[tuple[str, str], ...]] = (("advance", "hidden"),)
    decoder_names: ClassVar[tuple[str, str]] = ("paint", "painting")

    def _capture(self, runners: Runners) -> None:
        (self._advance,) = runners[LATENTS].prepare([partial(self._run, "advance")])
        (self._paint,) = runners[FRAMES].prepare([partial(self._run, "paint")])

    def _clear(self) -> None:
        super()._clear()
        self._block = 0

    def generate(self, noise: Tensor | None = None) -> Tensor:
        if noise is None:
            noise = block_noise(self.seed, self._block, 1, self.spec.noise_shape[1:])
        noise = self._take(NOISE, noise, self.spec.noise_shape)
        with self._turn(LATENTS):
            self._buffers["advance"].set({"x": noise[0]})
            self._advance()
            latent = self._buffers["advance"]["hidden"].clone()
            self._watch(LATENTS, latent)
            self._block += 1
        return self._resources.runners[LATENTS].hand_out(latent)

    def decode(self, latent: Tensor) -> Tensor:
        latent = self._take(LATENT, latent, self.spec.noise_shape[1:])
        with self._turn(FRAMES):
            self._buffers["paint"].set({"hidden": latent})
            self._paint()
            self._watch(FRAMES, self._buffers["paint"]["colors"])
            colors = self._buffers["paint"]["colors"].reshape(1, *self.spec.frame_size, 3)
            frames = colors.add(1).mul(127.5).round().to(torch.uint8)
        return self._resources.runners[FRAMES].hand_out(frames)
