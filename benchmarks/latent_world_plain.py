"""GameNGen's world with diffusers' networks, eager and compiled, for ``world_frames.py``."""

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import gamengen_oracle as oracle
import torch
from gamengen_models import oracle_networks
from torch import Tensor, nn

from vidc.compiler.bench.streams import Contestant
from vidc.exporters.families.latent_world import LatentWorld
from vidc.exporters.models import PRECISIONS
from vidc.runtime.manifest import Manifest

Call = Callable[..., Any]


class LatentStream:
    """Frames of diffusers' networks, as ``measure`` takes them.

    Args:
        model: sizes and sampler.
        networks: UNet, VAE and the embedding of actions.
        calls: the UNet and the VAE's decoder, as they are called.
    """

    def __init__(
        self,
        model: LatentWorld,
        networks: tuple[nn.Module, nn.Module, nn.Embedding],
        calls: Mapping[str, Call],
    ) -> None:
        unet, self.vae, embedding = networks
        parameter = next(unet.parameters())
        self.device, self.dtype = parameter.device, parameter.dtype
        self.calls = calls
        past = (model.unet.past, 4, *model.vae_part.latent_size)
        self.shape, self.action = (1, *past[1:]), 0
        sampler = model.sampler
        self.world = oracle.World(
            calls["unet"], self.vae, embedding,
            torch.zeros(past, device=self.device, dtype=self.dtype),
            torch.zeros(past[0], dtype=torch.long, device=self.device),
            sampler.steps, sampler.guidance, sampler.zeroed, sampler.past_noise,
            # A tensor that is kept would keep a compiled network's graph from being replayed.
            seen=deque(maxlen=0), noised=deque(maxlen=0),
        )  # fmt: skip

    def prompt(self, prompt: Tensor) -> None:
        """Refuses a prompt: a world takes actions."""
        raise NotImplementedError

    switch_prompt = prompt

    def condition(self, action: Tensor) -> None:
        self.action = int(action.argmax())

    def step(self, noise: Tensor | None = None) -> Tensor:
        return self.decode(self.generate(noise=noise))

    def generate(self, *, noise: Tensor | None = None) -> Tensor:
        shapes = [self.shape]
        if self.world.past_noise:
            shapes.append((1, self.shape[1] * len(self.world.past), *self.shape[2:]))
        if noise is None:
            draws = [torch.randn(s, device=self.device, dtype=self.dtype) for s in shapes]
        else:
            sizes = [torch.Size(shape).numel() for shape in shapes]
            pieces = noise.flatten().to(self.device, self.dtype).split(sizes)
            draws = [piece.view(shape) for piece, shape in zip(pieces, shapes, strict=True)]
        latent: Tensor = self.world.latent(self.action, draws)
        return latent

    def flush(self) -> None:
        """Does nothing: a frame leaves nothing for the next one."""

    def decode(self, latent: Tensor) -> Tensor:
        scaled = latent.to(self.dtype) / self.vae.config.scaling_factor
        frame = self.calls["decode"](scaled).sample
        return frame.add(1).mul(127.5).round().clamp(0, 255).permute(0, 2, 3, 1).to(torch.uint8)


def plain_latent_world(
    model: LatentWorld, manifest: Manifest, ours: Contestant, device: torch.device, mode: str
) -> dict[str, Contestant]:
    """diffusers' networks eager and compiled, over one copy of random weights."""
    (precision,) = {engine.precision for engine in manifest.engines.values()}
    with torch.device(device):
        networks = oracle_networks(model)
    for network in networks:
        network.to(PRECISIONS[precision]).requires_grad_(False)
    unet, vae, _ = networks
    unet.to(memory_format=torch.channels_last)
    vae.to(memory_format=torch.channels_last)
    eager = {"unet": unet, "decode": vae.decode}
    compiled = {name: torch.compile(call, mode=mode, dynamic=False) for name, call in eager.items()}
    return {
        name: Contestant(partial(LatentStream, model, networks, calls), ours.spec, ours.decoding)
        for name, calls in (("eager", eager), ("compiled", compiled))
    }
