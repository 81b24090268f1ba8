"""Oasis 500M in plain PyTorch, written from its published description; imports nothing of vidc.

Modules have the names of `oasis500m.safetensors` and `vit-l-20.safetensors`. `World.recomputed`
makes a frame as the public code does: the whole window passes through the network at every step.
`World.cached` keeps keys and values of past frames instead.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SCALE = 0.07843137255
CONTEXT = 14
"""Timestep at which past frames, which have no noise, enter the network."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of both networks."""

    dim: int = 1024
    heads: int = 16
    layers: int = 16
    channels: int = 16
    patch: int = 2
    actions: int = 25
    latent: tuple[int, int] = (18, 32)
    vae_dim: int = 1024
    vae_heads: int = 16
    encoder: int = 6
    decoder: int = 12
    vae_patch: int = 20


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Turns neighboring channels by angles, in float32; channels beyond stay."""
    twice = angles.repeat_interleave(2, -1)
    turning, rest = x[..., : twice.shape[-1]].float(), x[..., twice.shape[-1] :]
    quarter = torch.stack([-turning[..., 1::2], turning[..., ::2]], -1).flatten(-2)
    result = turning * twice.cos() + quarter * twice.sin()
    return torch.cat([result.to(x.dtype), rest], -1)


def pixel_angles(rows: int, columns: int, pairs: int, max_freq: float) -> Tensor:
    """Angles of the "pixel" rotary embedding, `[rows * columns, 2 * pairs]`: rows, then columns."""
    frequencies = torch.linspace(1.0, max_freq / 2, pairs) * math.pi
    y, x = torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns)
    down = torch.einsum("y,f->yf", y, frequencies)[:, None].repeat(1, columns, 1)
    across = torch.einsum("x,f->xf", x, frequencies)[None].repeat(rows, 1, 1)
    return torch.cat([down, across], -1).reshape(rows * columns, -1)


def heads_of(x: Tensor, heads: int) -> list[Tensor]:
    """`[A, L, 3 D]` to queries, keys and values, each `[A, heads, L, d]`."""
    return [each.unflatten(-1, (heads, -1)).transpose(1, 2) for each in x.chunk(3, -1)]


class Mlp(nn.Module):
    def __init__(self, dim: int, approximate: str) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.gelu = nn.GELU(approximate)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.gelu(self.fc1(x)))


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

    def joined(self, attended: Tensor) -> Tensor:
        return self.to_out(attended.transpose(1, 2).flatten(2))


def ada(dim: int, vectors: int) -> nn.Sequential:
    return nn.Sequential(nn.SiLU(), nn.Linear(dim, vectors * dim))


def modulated(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.s_attn, self.s_mlp, self.s_adaLN_modulation = (
            Attention(dim, heads), Mlp(dim, "tanh"), ada(dim, 6),
        )  # fmt: skip
        self.t_attn, self.t_mlp, self.t_adaLN_modulation = (
            Attention(dim, heads), Mlp(dim, "tanh"), ada(dim, 6),
        )  # fmt: skip

    @torch.compiler.nested_compile_region  # All layers have one piece of compiled code.
    def forward(self, x: Tensor, c: Tensor, places: Tensor, kept: "Kept") -> Tensor:
        """Maps `[T, N, D]` of `T` frames with conditioning `[T, D]`."""
        shift, scale, gate, *of_mlp = self.s_adaLN_modulation(c)[:, None].chunk(6, -1)
        q, k, v = heads_of(self.s_attn.to_qkv(modulated(x, shift, scale)), self.s_attn.heads)
        attended = F.scaled_dot_product_attention(rotated(q, places), rotated(k, places), v)
        x = x + gate * self.s_attn.joined(attended)
        x = x + of_mlp[2] * self.s_mlp(modulated(x, *of_mlp[:2]))

        shift, scale, gate, *of_mlp = self.t_adaLN_modulation(c)[:, None].chunk(6, -1)
        tokens = modulated(x, shift, scale).transpose(0, 1)
        q, k, v = heads_of(self.t_attn.to_qkv(tokens), self.t_attn.heads)
        attended = kept.attend(q, k, v)
        x = x + gate * self.t_attn.joined(attended).transpose(0, 1)
        return x + of_mlp[2] * self.t_mlp(modulated(x, *of_mlp[:2]))


class TimeEmbedder(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, dim), nn.SiLU(), nn.Linear(dim, dim))

    def forward(self, t: Tensor) -> Tensor:
        places = torch.arange(128, device=t.device) / 128
        angles = t.float()[:, None] * torch.exp(-math.log(10000) * places)
        sinusoid = torch.cat([torch.cos(angles), torch.sin(angles)], -1)
        return self.mlp(sinusoid.to(self.mlp[0].weight.dtype))


@dataclass
class Kept:
    """Keys and values of one layer's temporal attention.

    Attributes:
        past: rotated keys and values of each past frame, `[N, heads, 1, d]`, the oldest first.
        first: index in the stream of the first frame that passes now.
        newest: what this pass computed, by frame.
    """

    past: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    first: int = 0
    newest: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of `[N, heads, T, d]` to these and past frames."""
        count, pairs = q.shape[2], q.shape[3] // 2
        frequencies = 10000.0 ** (-torch.arange(pairs, device=q.device).double() / pairs)
        positions = torch.arange(self.first, self.first + count, device=q.device)
        angles = torch.outer(positions.double(), frequencies).float()
        q, k = rotated(q, angles), rotated(k, angles)
        if not self.past:
            self.newest = list(zip(k.split(1, 2), v.split(1, 2), strict=True))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert count == 1  # It sees every past frame.
        self.newest = [(k, v)]
        keys, values = (torch.cat(each, 2) for each in zip(*self.past, (k, v), strict=True))
        return F.scaled_dot_product_attention(q, keys, values)


class Transformer(nn.Module):
    """Predicts the velocity of every frame of a window."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        dim, patch = sizes.dim, sizes.patch
        self.sizes = sizes
        self.x_embedder = nn.Module()
        self.x_embedder.proj = nn.Conv2d(sizes.channels, dim, patch, patch)
        self.t_embedder = TimeEmbedder(dim)
        self.external_cond = nn.Linear(sizes.actions, dim)
        self.blocks = nn.ModuleList(Block(dim, sizes.heads) for _ in range(sizes.layers))
        self.final_layer = nn.Module()
        self.final_layer.linear = nn.Linear(dim, patch**2 * sizes.channels)
        self.final_layer.adaLN_modulation = ada(dim, 2)
        rows, columns = (side // patch for side in sizes.latent)
        # Half of a head rotates with the row, half with the column. No buffer: it stays float32.
        self.places = pixel_angles(rows, columns, dim // sizes.heads // 4, 256)

    def forward(
        self, x: Tensor, t: Tensor, actions: Tensor, kept: list[Kept] | None = None
    ) -> Tensor:
        """Maps latents `[T, C, h, w]` at timesteps `[T]` with actions `[T, A]`."""
        sizes = self.sizes
        kept = [Kept() for _ in self.blocks] if kept is None else kept
        embedded = self.x_embedder.proj(x)
        rows, columns = embedded.shape[-2:]
        tokens = embedded.flatten(2).transpose(1, 2)
        c = self.t_embedder(t) + self.external_cond(actions)
        for block, keep in zip(self.blocks, kept, strict=True):
            tokens = block(tokens, c, self.places, keep)
        shift, scale = self.final_layer.adaLN_modulation(c)[:, None].chunk(2, -1)
        out = self.final_layer.linear(modulated(tokens, shift, scale))
        grid = out.reshape(len(x), rows, columns, sizes.patch, sizes.patch, sizes.channels)
        return torch.einsum("tyxpqc->tcypxq", grid).reshape(x.shape)


def cumulative_alphas(timesteps: int = 1000) -> Tensor:
    """Products of 1 - beta of the sigmoid schedule from -3 to 3, float32 `[timesteps]`."""
    t = torch.linspace(0, 1, timesteps + 1, dtype=torch.float64)
    low, high = torch.tensor([-3.0, 3.0], dtype=torch.float64).sigmoid()
    level = (high - (6 * t - 3).sigmoid()) / (high - low)
    betas = (1 - level[1:] / level[:-1]).clip(0, 0.999)
    return torch.cumprod(1 - betas.float(), 0)


def levels_of(steps: int) -> list[int]:
    """Timesteps from the last step's end to the first step's start: -1, 99, ..., 999."""
    return torch.linspace(-1, 999, steps + 1).long().tolist()


def sampled(velocity: Callable[[Tensor, int], Tensor], noise: Tensor, steps: int) -> Tensor:
    """DDIM for v-prediction, as the public sampler writes it."""
    alphas, levels = cumulative_alphas(), levels_of(steps)
    x = noise.clamp(-20, 20)
    for index in range(steps, 0, -1):
        now = alphas[levels[index]]
        after = alphas[levels[index - 1]] if index > 1 else torch.tensor(1.0)
        v = velocity(x, levels[index])
        start = now.sqrt() * x - (1 - now).sqrt() * v
        drawn = ((1 / now).sqrt() * x - start) / (1 / now - 1).sqrt()
        x = after.sqrt() * start + drawn * (1 - after).sqrt()
    return x


class World:
    """A stream of latent frames.

    Args:
        transformer: network.
        window: frames that it sees.
        steps: of the sampler.
    """

    def __init__(self, transformer: Transformer, window: int = 32, steps: int = 10) -> None:
        self.transformer, self.window, self.steps = transformer, window, steps
        self.latents: list[Tensor] = []
        self.actions: list[Tensor] = []
        self.rings: list[list[tuple[Tensor, Tensor]]] = [[] for _ in transformer.blocks]

    def remember(self, latent: Tensor, action: Tensor) -> None:
        """Appends a clean frame `[C, h, w]`, and its keys and values to the rings."""
        kept = self._kept()
        t = torch.tensor([CONTEXT])
        self.transformer(latent[None], t, action[None], kept)
        for ring, keep in zip(self.rings, kept, strict=True):
            ring.append(keep.newest[-1])
        self.latents.append(latent)
        self.actions.append(action)

    def recomputed(self, noise: Tensor, action: Tensor) -> Tensor:
        """The next frame, by passes over all frames of the window."""
        first = max(0, len(self.latents) + 1 - self.window)
        past = self.latents[first:]
        actions = torch.stack([*self.actions[first:], action])

        def velocity(x: Tensor, t: int) -> Tensor:
            times = torch.tensor([CONTEXT] * len(past) + [t], device=x.device)
            return self.transformer(torch.stack([*past, x]), times, actions)[-1]

        return sampled(velocity, noise, self.steps)

    def cached(self, noise: Tensor, action: Tensor) -> Tensor:
        """The next frame, by passes over it alone."""

        def velocity(x: Tensor, t: int) -> Tensor:
            return self.transformer(x[None], torch.tensor([t]), action[None], self._kept())[0]

        return sampled(velocity, noise, self.steps)

    def _kept(self) -> list[Kept]:
        newest = self.window - 1
        return [Kept(ring[-newest:] if newest else [], len(self.latents)) for ring in self.rings]


class VaeAttention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        q, k, v = heads_of(self.qkv(x), self.heads)
        attended = F.scaled_dot_product_attention(rotated(q, places), rotated(k, places), v)
        return self.proj(attended.transpose(1, 2).flatten(2))


class VaeBlock(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim, 1e-6), nn.LayerNorm(dim, 1e-6)
        self.attn, self.mlp = VaeAttention(dim, heads), Mlp(dim, "none")

    @torch.compiler.nested_compile_region
    def forward(self, x: Tensor, places: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), places)
        return x + self.mlp(self.norm2(x))


class Vae(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        dim, heads = sizes.vae_dim, sizes.vae_heads
        self.sizes = sizes
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, dim, sizes.vae_patch, sizes.vae_patch)
        self.encoder = nn.ModuleList(VaeBlock(dim, heads) for _ in range(sizes.encoder))
        self.enc_norm = nn.LayerNorm(dim, 1e-6)
        self.quant_conv = nn.Linear(dim, 2 * sizes.channels)
        self.post_quant_conv = nn.Linear(sizes.channels, dim)
        self.decoder = nn.ModuleList(VaeBlock(dim, heads) for _ in range(sizes.decoder))
        self.dec_norm = nn.LayerNorm(dim, 1e-6)
        self.predictor = nn.Linear(dim, 3 * sizes.vae_patch**2)
        rows, columns = sizes.latent
        # A quarter of a head rotates with the row, a quarter with the column.
        self.places = pixel_angles(rows, columns, dim // heads // 8, rows * columns)

    def encode(self, image: Tensor) -> Tensor:
        """Images `[B, 3, H, W]` from -1 to 1 to scaled latents `[B, C, h, w]`."""
        x = self.patch_embed.proj(image).flatten(2).transpose(1, 2)
        for block in self.encoder:
            x = block(x, self.places)
        mean, _ = self.quant_conv(self.enc_norm(x)).chunk(2, -1)
        return mean.transpose(1, 2).unflatten(-1, self.sizes.latent) * SCALE

    def decode(self, latent: Tensor) -> Tensor:
        """Scaled latents `[B, C, h, w]` to images."""
        x = self.post_quant_conv(latent.flatten(2).transpose(1, 2) / SCALE)
        for block in self.decoder:
            x = block(x, self.places)
        patches, p = self.predictor(self.dec_norm(x)), self.sizes.vae_patch
        grid = patches.unflatten(1, self.sizes.latent).unflatten(-1, (3, p, p))
        return torch.einsum("byxcpq->bcypxq", grid).flatten(4, 5).flatten(2, 3)


def drawn(module: nn.Module, seed: int) -> nn.Module:
    """Fills a network with weights under which every part matters."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if weight.ndim > 1:
            gain = 0.5 if "adaLN" in name else 1.5
            weight.data = noise * gain / math.sqrt(weight[0].numel())
        else:
            weight.data = 0.3 * noise + ("norm" in name and name.endswith("weight"))
    return module.requires_grad_(False).eval()
