"""The four stages of training: each a network, its loss, and its share of the time.

All losses are regressions to one target for each input. No critic is needed, since captions and
history decide the video: the best answer at every level of noise is the clean latent itself.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from demo.data import Codec, Shelf, decode, draw_clip, draw_shelf, encode, statistics
from demo.networks import Sizes, new_text_encoder, new_transformer, new_vae
from demo.render import render
from demo.stream import Angles, Stream
from demo.tokens import PAD_ID
from demo.unrolled import Unrolled, segments
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.taehv.network import MEMORY_BLOCKS, Taehv, run

MINUTES = {"vae": 5.0, "tiny": 1.5, "flow": 9.5, "self": 8.5}
"""Minutes of each stage on an H100, 24.5 in all."""
RATES = {"vae": 2e-3, "tiny": 2e-3, "flow": 2e-3, "self": 4e-4}
"""Peak learning rates."""


@dataclass(frozen=True)
class Plan:
    """Amounts of work, for one H100; all may be lowered for a trial on a CPU."""

    vae_clips: int = 12  # Of 17 frames; in the first half of the time three times as many of 5.
    tiny_clips: int = 12
    clips: int = 12  # Clips of a batch.
    starts: int = 72  # Clips of one block, the stream's first.
    blocks: int = 9  # Of a clip.
    farthest: int = 128  # Blocks of the longest stream that clips are taken from.
    shelves: int = 8  # Clip layouts in memory at once.
    shelf_clips: int = 32  # Clips of one layout.
    shelf_starts: int = 768  # First blocks in memory at once.
    shelf_steps: int = 120  # Training steps before shelves are rendered anew.
    emphasis: float = 8.0  # Squared errors are weighted 1 + emphasis * coverage by objects.
    disturbance: float = 0.2  # Largest standard deviation of noise added to clean histories.
    measured: int = 8  # Batches that measure a finished VAE.


class Stage:
    """One stage; a step's random numbers depend on seed and step alone, so a run can resume."""

    name: str
    network: nn.Module

    def __init__(self, sizes: Sizes, plan: Plan, device: str, seed: int) -> None:
        self.sizes, self.plan, self.device, self.seed = sizes, plan, torch.device(device), seed

    def loss(self, step: int, share: float) -> dict[str, Tensor]:
        """Parts of a step's loss by name, ``loss`` the whole; ``share`` of the time is over."""
        raise NotImplementedError

    def facts(self) -> dict[str, Any]:
        """Values to store once ``network`` holds its final weights."""
        return {}

    def chance(self, step: int, purpose: str = "step") -> random.Random:
        """Returns Python's generator for a step, a function of seed, stage, purpose and step."""
        return random.Random(f"{self.seed} {self.name} {purpose} {step}")

    def draws(self, step: int) -> torch.Generator:
        """Returns the device's generator for a step."""
        return torch.Generator(self.device).manual_seed(
            self.chance(step, "tensors").getrandbits(62)
        )

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")

    def video(self, choose: random.Random, count: int, latents: int) -> Tensor:
        """Random clips ``[count, 3, T, H, W]`` of frames that make so many latent frames."""
        frames = 4 * latents - 3
        starts = [choose.randrange(1500) for _ in range(count)]
        # One clip in five switches its prompt on the way.
        turns = [s + choose.randrange(1, frames) if choose.random() < 0.2 else None for s in starts]
        clips = [draw_clip(choose, turn) for turn in turns]
        times = torch.tensor(starts)[:, None] + torch.arange(frames)
        return render(clips, times, self.sizes.pixels, self.device)[0]


class VaeStage(Stage):
    """The VAE: pixels, edges at three sizes, and a narrow posterior."""

    name = "vae"

    def __init__(self, sizes: Sizes, plan: Plan, device: str, seed: int) -> None:
        super().__init__(sizes, plan, device, seed)
        self.network = new_vae(sizes).to(self.device)

    def loss(self, step: int, share: float) -> dict[str, Tensor]:
        count, latents = (3 * self.plan.vae_clips, 2) if share < 0.5 else (self.plan.vae_clips, 5)
        frames = self.video(self.chance(step), count, latents)
        with self.autocast():
            mean, log_variance = encode(self.network, frames)
            noise = torch.randn(mean.shape, generator=self.draws(step), device=self.device)
            made = decode(self.network, mean + torch.exp(0.5 * log_variance) * noise)
        error = made - frames
        divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).mean()
        square = error.square().mean()
        loss = error.abs().mean() + 4 * square + _edges(error) + 5e-4 * divergence
        return {"loss": loss, "square": square, "divergence": divergence}

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """The latents' statistics, and PSNR in dB on clips of other seeds."""
        means, squares = [], []
        for index in range(self.plan.measured):
            frames = self.video(self.chance(index, "measure"), self.plan.vae_clips, 5)
            with self.autocast():
                mean, _ = encode(self.network, frames)
                made = decode(self.network, mean)
            means.append(mean)
            squares.append((made.clamp(-1, 1) - frames).square().mean())
        mean, std = statistics(torch.cat(means))
        psnr = 10 * torch.log10(4 / torch.stack(squares).mean())
        return {"mean": mean.tolist(), "std": std.tolist(), "psnr": float(psnr)}


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

    name = "tiny"

    def __init__(self, sizes: Sizes, plan: Plan, device: str, seed: int, codec: Codec) -> None:
        super().__init__(sizes, plan, device, seed)
        self.codec = codec
        self.network = Taehv(sizes.config.taehv).to(self.device)

    def loss(self, step: int, share: float) -> dict[str, Tensor]:
        frames = self.video(self.chance(step), self.plan.tiny_clips, 5)
        with self.autocast():
            latents, asked = self._taught(frames)
            noise = torch.randn(latents.shape, generator=self.draws(step), device=self.device)
            # A transformer's latents are never exact.
            made, found = self._decode(latents + 0.03 * noise), self._encode(frames)
        error, latent = made - asked, (found - latents).square().mean()
        square = error.square().mean()
        pixels = error.abs().mean() + 4 * square + 0.5 * _edges(error)
        return {"loss": pixels + 0.1 * latent, "square": square, "latent": latent}

    @torch.no_grad()
    def _taught(self, frames: Tensor) -> tuple[Tensor, Tensor]:
        latents = self.codec.encode(frames)
        return latents, self.codec.decode(latents).clamp(-1, 1)

    def _decode(self, latents: Tensor) -> Tensor:
        """Normalized latents ``[B, F, C, h, w]`` to frames ``[B, 3, 4F - 3, H, W]``."""
        layers = self.network.get_submodule("decoder").children()
        pixels, *_ = run(layers, 3 * torch.tanh(latents / 3), [None] * 3 * MEMORY_BLOCKS)
        return pixels[:, 3:].transpose(1, 2).float() * 2 - 1

    def _encode(self, frames: Tensor) -> Tensor:
        """The inverse; the encoder looks three frames ahead, at the end at the last one."""
        pixels = (frames.transpose(1, 2) + 1) / 2
        pixels = torch.cat([pixels, *[pixels[:, -1:]] * 3], 1)
        layers = self.network.get_submodule("encoder").children()
        latents, *_ = run(layers, pixels, [None] * 3 * MEMORY_BLOCKS)
        return latents.float()

    @torch.no_grad()
    def facts(self) -> dict[str, Any]:
        """PSNR in dB against the VAE's own decoding."""
        latents, asked = self._taught(
            self.video(self.chance(0, "measure"), self.plan.tiny_clips, 5)
        )
        square = (self._decode(latents).clamp(-1, 1) - asked).square().mean()
        return {"psnr": float(10 * torch.log10(4 / square))}


class FlowStage(Stage):
    """Transformer and text encoder over clean histories, at the levels that the sampler has."""

    name = "flow"

    def __init__(self, sizes: Sizes, plan: Plan, device: str, seed: int, codec: Codec) -> None:
        super().__init__(sizes, plan, device, seed)
        self.codec = codec
        transformer, text = new_transformer(sizes), new_text_encoder(sizes)
        self.network = nn.ModuleDict({"transformer": transformer, "text_encoder": text})
        self.network.to(self.device)
        self._angles = Angles(sizes.stream, self.device)
        self._model = transformer
        self._text = text
        self._round = -1
        self._shelves: list[Shelf] = []
        self._starts: Shelf | None = None

    def loss(self, step: int, share: float) -> dict[str, Tensor]:
        starts = self._prepare(step)
        draw, choose = self.draws(step), self.chance(step)
        weights: dict[str, Tensor] = dict(self._model.named_parameters())
        if self.device.type == "cuda":
            # Converted once a step, however many passes there are.
            weights = {name: weight.bfloat16() for name, weight in weights.items()}
        named = {f"model.{name}": weight for name, weight in weights.items()}

        def error(shelf: Shelf, size: int) -> Tensor:
            arguments = (lambda model: self.shelf_loss(model, shelf, size, choose, draw),)
            loss: Tensor = functional_call(_Use(self._model), named, arguments)
            return loss

        clips = error(choose.choice(self._shelves), self.plan.clips)
        first = error(starts, self.plan.starts)
        return {"loss": clips + first, "clips": clips, "starts": first}

    def _prepare(self, step: int) -> Shelf:
        """Renders the step's shelves if they are not there; returns the shelf of first blocks."""
        plan, current = self.plan, step // self.plan.shelf_steps
        if current != self._round or self._starts is None:
            choose, shared = self.chance(current, "shelves"), (self.sizes, self.codec)
            counts = (plan.shelf_clips, plan.blocks, plan.farthest)
            self._shelves = [draw_shelf(*shared, choose, *counts) for _ in range(plan.shelves)]
            self._starts = draw_shelf(*shared, choose, plan.shelf_starts, 1, plan.farthest)
            self._round = current
        return self._starts

    def embeds(self, tokens: Tensor) -> Tensor:
        """Embeddings ``[B, P, L, E]`` of tokens ``[B, P, L]``."""
        flat = tokens.flatten(0, 1)
        (embeds,) = self._text(flat, (flat != PAD_ID).long())
        result: Tensor = embeds.unflatten(0, tokens.shape[:2])
        return result

    def shelf_loss(
        self,
        model: CausalWan,
        shelf: Shelf,
        size: int,
        choose: random.Random,
        draw: torch.Generator,
    ) -> Tensor:
        """Mean square error of the flows of a batch's blocks, each at a level of its own."""
        clean, shown, tokens = shelf.batch(size, draw)
        spec, embeds = self.sizes.stream, self.embeds(tokens)
        made, history = self.blocks(model, shelf, clean, embeds.detach(), choose, draw)
        asked, made = clean[:, shelf.known :], made[:, shelf.known :]
        # Half of all blocks begin from pure noise, where the sampler decides what is shown.
        sigmas = torch.tensor(spec.sigmas, device=self.device)
        chances = torch.full_like(sigmas, 0.5 / max(1, len(sigmas) - 1))
        chances[0] = 0.5
        drawn = torch.multinomial(chances, asked[:, :, 0, 0, 0, 0].numel(), True, generator=draw)
        levels = sigmas[drawn].view(asked.shape[:2])
        share = levels[..., None, None, None, None]
        noisy = torch.lerp(made, self.noise(draw, made.shape), share)
        unrolled = Unrolled(
            segments(shelf.positions, shelf.known, shelf.switch, spec), self._angles, spec
        )
        flows = unrolled.flows(model, unrolled.latents(history, noisy), levels, embeds)
        # The flow that leads to the video's block, whatever the noisy one was made of.
        error = flows - (noisy - asked) / share
        weight = 1 + self.plan.emphasis * shown[:, shelf.known :, :, None]
        return (weight * error.square()).mean()

    def noise(self, draw: torch.Generator, shape: Sequence[int]) -> Tensor:
        """Unit normal noise."""
        return torch.randn(shape, generator=draw, device=self.device)

    def blocks(
        self, model: CausalWan, shelf: Shelf, clean: Tensor, embeds: Tensor,
        choose: random.Random, draw: torch.Generator,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """The blocks that noise is added to, and those that later blocks read.

        Both as ``clean``, ``[B, blocks, F, C, h, w]``.
        """
        amount = torch.rand(*clean.shape[:2], 1, 1, 1, 1, generator=draw, device=self.device)
        return clean, clean + self.plan.disturbance * amount * self.noise(draw, clean.shape)


class _Use(nn.Module):
    """Hands a network to a function, because ``functional_call`` calls modules alone."""

    def __init__(self, model: CausalWan) -> None:
        super().__init__()
        self.model = model

    def forward(self, use: Callable[[CausalWan], Tensor]) -> Tensor:
        return use(self.model)


class SelfStage(FlowStage):
    """The same over histories that the model made itself, as in a session.

    Noise is added to the model's own block; the target stays the video's. Rollouts take some or all
    of the sampler's steps. No gradient passes through latents.
    """

    name = "self"

    @torch.no_grad()
    def blocks(
        self, model: CausalWan, shelf: Shelf, clean: Tensor, embeds: Tensor,
        choose: random.Random, draw: torch.Generator,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Generates each block from the stream's own past."""
        made, history = (
            list(each.unbind(1))
            for each in super().blocks(model, shelf, clean, embeds, choose, draw)
        )
        spec = self.sizes.stream
        count = choose.randint(1, len(spec.sigmas)) if choose.random() < 0.5 else len(spec.sigmas)
        levels = [*spec.sigmas[:1], *spec.sigmas[len(spec.sigmas) - count + 1 :]]
        stream = Stream(model, embeds, self._angles, spec)
        for index, block in enumerate(shelf.positions):
            if index == shelf.switch:
                stream.switch_prompt(block)
            if index >= shelf.known:
                noise = self.noise(draw, (len(levels), *clean[:, index].shape))
                made[index] = history[index] = stream.generate(noise, levels, block)
            if index + 1 < len(shelf.positions):  # Nothing reads the last block.
                stream.remember(history[index], block)
        return torch.stack(made, 1), torch.stack(history, 1)


def build(
    name: str, sizes: Sizes, plan: Plan, device: str, seed: int, done: Mapping[str, Any]
) -> Stage:
    """Returns stage ``name``; ``done`` has the checkpoints of the stages before it, by name."""
    if name == "vae":
        return VaeStage(sizes, plan, device, seed)
    codec = load_codec(sizes, done["vae"], device)
    if name == "tiny":
        return TinyStage(sizes, plan, device, seed, codec)
    if name == "flow":
        return FlowStage(sizes, plan, device, seed, codec)
    stage = SelfStage(sizes, plan, device, seed, codec)
    stage.network.load_state_dict(done["flow"]["ema"])
    return stage


def load_codec(sizes: Sizes, checkpoint: Mapping[str, Any], device: str) -> Codec:
    """The trained VAE, frozen."""
    vae = new_vae(sizes)
    vae.load_state_dict(checkpoint["ema"])
    facts = checkpoint["facts"]
    values = (torch.tensor(facts[key], device=device) for key in ("mean", "std"))
    return Codec(vae.to(device).eval().requires_grad_(False), *values)
