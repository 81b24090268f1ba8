"""The four stages of training: each a network, its loss, and its share of the time.

But for the VAE's divergence, losses are regressions to one target for each input. No critic is
needed, since captions and history decide the video: the best answer at every level of noise is the
clean latent itself.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from demo_model.data import Codec, Shelf, autocast, decode, encode
from demo_model.graphs import Function, Replayed
from demo_model.networks import Sizes, new_text_encoder, new_transformer, new_vae
from demo_model.render import render
from demo_model.world import PAD_ID, draw_clip
from vidc.compiler.validate.metrics import psnr
from vidc.exporters.parts.taehv.network import MEMORY_BLOCKS, Taehv, run


@dataclass(frozen=True)
class Plan:
    """Batch sizes and numbers of clips, for one H100 or H200; lower ones make a trial on a CPU.

    A shelf has encoded clips of one layout in memory, which batches are drawn from.
    """

    vae_clips: int = 12  # Of 17 frames; in the first half of the VAE's time, 36 clips of 5.
    clips: int = 16  # Clips of a batch.
    first_blocks: int = 96  # Clips of one block, the stream's first.
    blocks: int = 9  # Of a clip.
    farthest: int = 128  # Blocks of the longest stream that clips are taken from.
    shelves: int = 8  # Clip layouts in memory at once.
    shelf_clips: int = 64  # Clips of one layout.
    shelf_first_blocks: int = 2048  # First blocks in memory at once.
    shelf_steps: int = 480  # Training steps before shelves are rendered anew.
    emphasis: float = 8.0  # Errors are weighted 1 + emphasis * coverage by objects,
    after_switch: float = 3.0  # and by this in the two blocks after a prompt switch.
    disturbance: float = 0.2  # Largest standard deviation of noise added to clean histories.
    measured: int = 8  # Batches that measure a finished VAE.


class Stage:
    """One stage; a step's random numbers depend on seed and step alone, so a run can resume.

    ``done`` has the checkpoints of earlier stages by name. ``minutes`` are those of an H200, and
    ``rate`` is the peak learning rate.
    """

    name: str
    minutes: float
    rate: float
    codec: Codec  # The trained VAE, for the stages after it.

    def __init__(
        self, sizes: Sizes, plan: Plan, device: str, seed: int, done: Mapping[str, Any]
    ) -> None:
        self.sizes, self.plan, self.device, self.seed = sizes, plan, torch.device(device), seed
        if self.name != "vae":
            self.codec = Codec.trained(sizes, done["vae"], self.device)
        self.network = self.create(done).to(self.device)

    def create(self, done: Mapping[str, Any]) -> nn.Module:
        """Returns the network with its first weights, on the CPU."""
        raise NotImplementedError

    def loss(self, step: int, progress: float) -> dict[str, Tensor]:
        """Parts of a step's loss by name, ``loss`` the whole, at a share of its time."""
        raise NotImplementedError

    def backward(self, step: int, progress: float) -> dict[str, Tensor]:
        """Puts the gradients of ``loss`` into the network; returns its parts."""
        parts = self.loss(step, progress)
        self.network.zero_grad()
        parts["loss"].backward()
        return parts

    def facts(self) -> dict[str, Any]:
        """Values to store once ``network`` holds its final weights."""
        return {}

    def chance(self, step: int, purpose: str = "step") -> random.Random:
        """Returns Python's generator for a step, a function of seed, stage, purpose and step."""
        return random.Random(f"{self.seed} {self.name} {purpose} {step}")

    def draws(self, step: int) -> torch.Generator:
        """Returns the device's generator for a step."""
        seed = self.chance(step, "tensors").getrandbits(62)
        return torch.Generator(self.device).manual_seed(seed)

    def video(self, choose: random.Random, count: int, latents: int) -> tuple[Tensor, Tensor]:
        """Random clips of so many latent frames and weights of their pixels' errors.

        ``[count, 3, T, H, W]`` and ``[count, 1, T, H, W]``; T frames make ``latents`` of them.
        """
        frames = 4 * latents - 3
        starts = [choose.randrange(1500) for _ in range(count)]
        # One clip in five switches its prompt on the way.
        turns = [s + choose.randrange(1, frames) if choose.random() < 0.2 else None for s in starts]
        clips = [draw_clip(choose, False, turn) for turn in turns]
        times = torch.tensor(starts)[:, None] + torch.arange(frames)
        made, shown = render(clips, times, self.sizes.stream.video, self.device)
        return made, 1 + self.plan.emphasis * shown[:, None]


class VaeStage(Stage):
    """The VAE: errors of pixels and of edges at three sizes, and a small divergence."""

    name, minutes, rate = "vae", 5.0, 2e-3

    def create(self, done: Mapping[str, Any]) -> nn.Module:
        return new_vae(self.sizes)

    def loss(self, step: int, progress: float) -> dict[str, Tensor]:
        many = progress < 0.5
        count, latents = (3 * self.plan.vae_clips, 2) if many else (self.plan.vae_clips, 5)
        frames, weight = self.video(self.chance(step), count, latents)
        with autocast(self.device):
            drawn = encode(self.network, frames)
            error = decode(self.network, drawn.sample(self.draws(step))) - frames
        divergence = 0.5 * (drawn.mean.square() + drawn.var - 1 - drawn.logvar).mean()
        loss = pixels(error, weight) + _edges(error) + 5e-4 * divergence
        return {"loss": loss, "square": error.square().mean(), "divergence": divergence}

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """The latents' statistics by channel, and PSNR in dB on clips of other seeds."""
        measured = []
        for index in range(self.plan.measured):
            frames, _ = self.video(self.chance(index, "measure"), self.plan.vae_clips, 5)
            with autocast(self.device):
                mean = encode(self.network, frames).mean
                measured.append((mean, decode(self.network, mean).clamp(-1, 1), frames))
        means, made, asked = (torch.cat(each) for each in zip(*measured, strict=True))
        latents = means.transpose(0, 1).flatten(1)
        mean, std = latents.mean(1), latents.std(1)
        # A channel that carries nothing is not blown up to unit variance.
        std = std.clamp_min(0.1 * float(std.max()))
        return {"mean": mean.tolist(), "std": std.tolist(), "psnr": psnr(made, asked, peak=2)}


def pixels(error: Tensor, weight: Tensor) -> Tensor:
    """Mean of weighted absolute and square errors of pixels."""
    return (weight * (error.abs() + 4 * error.square())).mean()


def _edges(error: Tensor) -> Tensor:
    """Mean absolute differences of an error's neighbors in time, and in space at three sizes."""
    total = error.diff(dim=2).abs().mean()
    for scale in range(3):
        if scale:
            error = F.avg_pool3d(error, (1, 2, 2))
        total = total + error.diff(dim=3).abs().mean() + error.diff(dim=4).abs().mean()
    return total


class TinyStage(Stage):
    """A TAEHV, taught to decode the VAE's latents as the VAE does, and to encode to them."""

    name, minutes, rate = "tiny", 1.5, 2e-3

    def create(self, done: Mapping[str, Any]) -> nn.Module:
        return Taehv(self.sizes.config.taehv)

    def loss(self, step: int, progress: float) -> dict[str, Tensor]:
        frames, weight = self.video(self.chance(step), self.plan.vae_clips, 5)
        with autocast(self.device):
            latents, asked = self._taught(frames)
            noise = torch.randn(latents.shape, generator=self.draws(step), device=self.device)
            # A transformer's latents are never exact.
            made, found = self.decode(latents + 0.03 * noise), self.encode(frames)
        error, latent = made - asked, (found - latents).square().mean()
        loss = pixels(error, weight) + 0.5 * _edges(error) + 0.1 * latent
        return {"loss": loss, "square": error.square().mean(), "latent": latent}

    @torch.no_grad()
    def _taught(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        latents = self.codec.encode(frames)
        return latents, self.codec.decode(latents).clamp(-1, 1)

    def decode(self, latents: Tensor) -> Tensor:
        """Normalized latents ``[B, F, C, h, w]`` to frames ``[B, 3, 4F - 3, H, W]``."""
        pixels = self._run("decoder", 3 * torch.tanh(latents / 3))
        return pixels[:, 3:].transpose(1, 2).float() * 2 - 1

    def encode(self, frames: Tensor) -> Tensor:
        """The inverse. The encoder needs three later frames; at the end, the last is repeated."""
        pixels = (frames.transpose(1, 2) + 1) / 2
        return self._run("encoder", torch.cat([pixels, *[pixels[:, -1:]] * 3], 1)).float()

    def _run(self, name: str, x: Tensor) -> Tensor:
        layers = self.network.get_submodule(name).children()
        return run(layers, x, [None] * 3 * MEMORY_BLOCKS)[0]

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """PSNR in dB against the VAE's own decoding."""
        frames, _ = self.video(self.chance(0, "measure"), self.plan.vae_clips, 5)
        latents, asked = self._taught(frames)
        return {"psnr": psnr(self.decode(latents).clamp(-1, 1), asked, peak=2)}


class FlowStage(Stage):
    """Transformer and text encoder after the renderer's blocks with a little noise added."""

    name, minutes, rate = "flow", 7.5, 2e-3

    def create(self, done: Mapping[str, Any]) -> nn.Module:
        self._model, self._text = new_transformer(self.sizes), new_text_encoder(self.sizes)
        # Weights are converted once a step, however many passes there are.
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self._fast = deepcopy(self._model).to(self.device, dtype)
        self._round = -1
        return nn.ModuleDict({"transformer": self._model, "text_encoder": self._text})

    def backward(self, step: int, progress: float) -> dict[str, Tensor]:
        """Gradients of a batch of clips and one of first blocks; on a GPU by a CUDA graph."""
        if self._round != step // self.plan.shelf_steps:
            self._round = step // self.plan.shelf_steps
            self._render(self.chance(self._round, "shelves"))
        draw, index = self.draws(step), self.chance(step).randrange(len(self._shelves))
        clips = self._batch(self._shelves[index], self.plan.clips, draw)
        firsts = self._batch(self._first_blocks, self.plan.first_blocks, draw)
        embeds = self._embeds([clips[0], firsts[0]])
        with torch.no_grad():
            torch._foreach_copy_([*self._fast.parameters()], [*self._model.parameters()])
        error, first, *gradients = self._works[index]([*embeds, *clips[1:], *firsts[1:]])
        self.network.zero_grad()
        torch.autograd.backward(embeds, gradients[:2])
        for weight, found in zip(self._model.parameters(), gradients[2:], strict=True):
            weight.grad = found.float()
        return {"loss": error + first, "clips": error, "starts": first}

    def _render(self, choose: random.Random) -> None:
        """Renders shelves of clips and one of first blocks, and prepares their gradients."""
        plan = self.plan
        drawn = partial(Shelf.drawn, choose, self.codec, plan.farthest)
        self._shelves = [drawn(plan.blocks, plan.shelf_clips) for _ in range(plan.shelves)]
        self._first_blocks = drawn(1, plan.shelf_first_blocks)
        shelves = (self._first_blocks, *self._shelves)
        first, *errors = [partial(self._error, each, self._steps(choose)) for each in shelves]
        self._works: list[Function] = [partial(self._gradients, each, first) for each in errors]
        if self.device.type == "cuda":
            pool = torch.cuda.graph_pool_handle()
            self._works = [Replayed(work, pool) for work in self._works]

    def _gradients(
        self, clips: Callable[..., Tensor], firsts: Callable[..., Tensor], tensors: Sequence[Tensor]
    ) -> list[Tensor]:
        """Both errors, then the gradients of their sum: of both embeddings and of all weights.

        ``tensors`` has the embeddings of clips and of first blocks, then either's batch.
        """
        embeds, batches = [each.detach().requires_grad_() for each in tensors[:2]], tensors[2:]
        half = len(batches) // 2
        error, first = clips(embeds[0], *batches[:half]), firsts(embeds[1], *batches[half:])
        wanted = [*embeds, *self._fast.parameters()]
        return [error.detach(), first.detach(), *torch.autograd.grad(error + first, wanted)]

    def _embeds(self, tokens: Sequence[Tensor]) -> list[Tensor]:
        """Embeddings ``[B, P, L, E]`` of several batches' tokens ``[B, P, L]``."""
        flat = torch.cat([each.flatten(0, 1) for each in tokens])
        (embeds,) = self._text(flat, (flat != PAD_ID).long())
        parts = embeds.split([each.shape[0] * each.shape[1] for each in tokens])
        return [e.unflatten(0, each.shape[:2]) for e, each in zip(parts, tokens, strict=True)]

    def _batch(self, shelf: Shelf, size: int, draw: torch.Generator) -> tuple[Tensor, ...]:
        """A batch's tokens ``[B, P, L]``, and the tensors that ``_error`` takes after embeddings.

        These are clean latents ``[B, blocks, F, C, h, w]``, the share that objects cover, the
        latents with noise added, the noise level of each noisy block ``[B, N]``, and noise
        ``[1 + steps, B, N, F, C, h, w]`` for the noisy blocks and for each step of the sampler.
        """
        normal = partial(torch.randn, generator=draw, device=self.device)
        rows = torch.randperm(len(shelf.latents), generator=draw, device=self.device)[:size]
        clean, shown = shelf.latents[rows].float(), shelf.shown[rows]
        amount = torch.rand(*clean.shape[:2], 1, 1, 1, 1, generator=draw, device=self.device)
        history = clean + self.plan.disturbance * amount * normal(clean.shape)
        asked = clean[:, shelf.streams.layout.known :]
        # Half of all blocks begin from pure noise, where the sampler decides what is shown.
        sigmas = torch.tensor(self.sizes.stream.sigmas, device=self.device)
        chances = torch.full_like(sigmas, 0.5 / max(1, len(sigmas) - 1))
        chances[0] = 0.5
        drawn = torch.multinomial(chances, asked[:, :, 0, 0, 0, 0].numel(), True, generator=draw)
        levels = sigmas[drawn].view(asked.shape[:2])
        noise = normal((1 + len(sigmas), *asked.shape))
        return shelf.tokens[rows], clean, shown, history, levels, noise

    def _error(
        self, shelf: Shelf, steps: Sequence[float], embeds: Tensor, clean: Tensor, shown: Tensor,
        history: Tensor, levels: Tensor, noise: Tensor,
    ) -> Tensor:  # fmt: skip
        """Mean square error of the flows of all noisy blocks, each at its own level.

        Histories are generated by ``steps`` of the sampler, if there are any. Embeddings are
        ``[B, P, L, E]``; the tensors after them are those of ``_batch``.
        """
        streams, known, start = shelf.streams, shelf.streams.layout.known, clean
        if steps:
            start = history = streams.generate(self._fast, history, noise[1:], steps, embeds)
        level = levels[..., None, None, None, None]
        noisy = torch.lerp(start[:, known:], noise[0], level)
        flows = streams.flows(self._fast, history, noisy, levels, embeds)
        # The target flow leads to the renderer's block, also from a block that the model made.
        wrong = flows - (noisy - clean[:, known:]) / level
        weight = 1 + self.plan.emphasis * shown[:, known:, :, None]
        if (switch := shelf.streams.layout.switch) is not None:
            weight[:, switch - known : switch - known + 2] *= self.plan.after_switch
        return (weight * wrong.square()).mean()

    def _steps(self, choose: random.Random) -> Sequence[float]:
        """Sigmas of the steps by which histories are generated; none for clean ones."""
        return ()


class SelfStage(FlowStage):
    """As ``FlowStage``, but after blocks that the model made itself, as in a session.

    Only a shelf's first ``known`` blocks come from the renderer. Noise is added to the model's own
    block; the target stays the video's. Rollouts take some or all of the sampler's steps. No
    gradient passes through latents.
    """

    name, minutes, rate = "self", 9.0, 4e-4

    def create(self, done: Mapping[str, Any]) -> nn.Module:
        network = super().create(done)
        network.load_state_dict(done["flow"]["ema"])
        return network

    def _steps(self, choose: random.Random) -> Sequence[float]:
        sigmas = self.sizes.stream.sigmas
        count = choose.randint(1, len(sigmas)) if choose.random() < 0.5 else len(sigmas)
        return [*sigmas[:1], *sigmas[len(sigmas) - count + 1 :]]


STAGES: Sequence[type[Stage]] = (VaeStage, TinyStage, FlowStage, SelfStage)
"""In the order of training: 23 minutes in all."""
