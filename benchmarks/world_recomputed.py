"""A plain-PyTorch Oasis that recomputes its window at every step, as the public code does.

It is the tests' oracle at a bundle's sizes, in the bundle's precision, with random weights of its
own. From the first frame on its window is full, so that shapes are static.
"""

from collections.abc import Callable
from functools import partial

import oasis_oracle as oracle
import torch
from oasis_models import sizes_of
from torch import Tensor

from vidc.compiler.bench.streams import Contestant
from vidc.exporters.families.oasis import Oasis
from vidc.exporters.models import PRECISIONS
from vidc.runtime.manifest import Manifest

Call = Callable[..., Tensor]


class RecomputedStream:
    """Frames of the oracle, as ``measure`` takes them."""

    def __init__(self, model: Oasis, velocity: Call, decode: Call, like: Tensor) -> None:
        zeros, self.dtype = partial(torch.zeros, device=like.device), like.dtype
        past = model.stream.window - 1
        self.velocity_of, self.decode_latent = velocity, decode
        self.latents = zeros(past, model.transformer.channels, *model.latent_size)
        self.actions = zeros(past, model.transformer.actions, dtype=self.dtype)
        self.action = zeros(1, model.transformer.actions, dtype=self.dtype)
        levels = oracle.levels_of(model.sampler.steps)
        context = [oracle.CONTEXT] * past
        self.times = {t: torch.tensor([*context, t], device=like.device) for t in levels[1:]}
        self.steps = model.sampler.steps

    def prompt(self, prompt: Tensor) -> None:
        raise NotImplementedError

    switch_prompt = prompt

    def condition(self, action: Tensor) -> None:
        self.action.copy_(action[None])

    def step(self, noise: Tensor | None = None) -> Tensor:
        return self.decode(self.generate(noise=noise))

    def generate(self, *, noise: Tensor | None = None) -> Tensor:
        like = self.latents[:1]
        drawn = torch.randn_like(like) if noise is None else noise.view_as(like)
        actions = torch.cat([self.actions, self.action])

        def velocity(x: Tensor, t: int) -> Tensor:
            frames = torch.cat([self.latents, x]).to(self.dtype)
            return self.velocity_of(frames, self.times[t], actions)[-1:].float()

        latent = oracle.sampled(velocity, drawn, self.steps)
        self.latents.copy_(torch.cat([self.latents[1:], latent]))
        self.actions.copy_(actions[1:])
        return latent

    def flush(self) -> None:
        """Does nothing: a frame leaves nothing for the next one."""

    def decode(self, latent: Tensor) -> Tensor:
        pixels = self.decode_latent(latent.to(self.dtype)).float()
        return pixels.add(1).mul(127.5).round().clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


def recomputed_worlds(
    model: Oasis, manifest: Manifest, ours: Contestant, device: torch.device, mode: str
) -> dict[str, Contestant]:
    """The oracle eager and compiled, over one copy of random weights."""
    sizes = sizes_of(model)
    dtype = PRECISIONS[manifest.engines["denoise"].precision]
    with torch.device(device):
        transformer, vae = oracle.Transformer(sizes).to(dtype), oracle.Vae(sizes).to(dtype)
    like = next(transformer.parameters())
    eager = (transformer.forward, vae.decode)
    compiled = [torch.compile(call, mode=mode, dynamic=False) for call in eager]
    return {
        name: Contestant(partial(RecomputedStream, model, *calls, like), ours.spec, ours.decoding)
        for name, calls in (("eager", eager), ("compiled", compiled))
    }
