"""A causal Wan transformer with a roll-and-concatenate cache, as a test oracle.

Written from the published description alone: original formulas, complex rotation, a cache that
is rolled and concatenated, a prompt switch that recomputes ``window`` frames. It imports nothing
from vidc and shares no code with it; weights come in as a dict with diffusers' names.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass
class RollCache:
    """Keys and values of one layer, oldest first, and how many tokens were ever seen."""

    k: Tensor | None = None
    v: Tensor | None = None
    seen: int = 0


@dataclass
class RollCacheWan:
    weights: dict[str, Tensor]
    heads: int
    layers: int
    freq_dim: int
    window: int  # latent frames
    sink: int
    steps: list[int]
    shift: float
    eps: float = 1e-6
    first_frame: int = 0
    caches: list[RollCache] = field(default_factory=list)
    frames: list[Tensor] = field(default_factory=list)
    text: Tensor | None = None

    def __post_init__(self) -> None:
        self.caches = [RollCache() for _ in range(self.layers)]
        self.position = self.first_frame

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def rms(self, name: str, x: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * self.weights[name]

    def norm(self, x: Tensor) -> Tensor:
        centered = x - x.mean(-1, keepdim=True)
        return centered / (centered.pow(2).mean(-1, keepdim=True) + self.eps).sqrt()

    @staticmethod
    def gelu(x: Tensor) -> Tensor:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def rope(self, x: Tensor, first: int, frames: int, rows: int, cols: int) -> Tensor:
        pairs = x.shape[-1] // 2
        parts = [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]
        position = torch.stack(
            torch.meshgrid(
                torch.arange(first, first + frames, dtype=torch.float64),
                torch.arange(rows, dtype=torch.float64),
                torch.arange(cols, dtype=torch.float64),
                indexing="ij",
            )
        ).reshape(3, -1)
        angles = torch.cat(
            [
                position[axis][:, None]
                * 10000.0 ** (-2.0 * torch.arange(n, dtype=torch.float64) / (2 * n))
                for axis, n in enumerate(parts)
            ],
            1,
        )
        rotation = torch.polar(torch.ones_like(angles), angles)[None, :, None]
        complex_x = torch.view_as_complex(x.double().reshape(*x.shape[:-1], pairs, 2))
        return torch.view_as_real(complex_x * rotation).flatten(3).to(x.dtype)

    @staticmethod
    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.einsum("bthd,bshd->bhts", q, k) / math.sqrt(q.shape[-1])
        return torch.einsum("bhts,bshd->bthd", scores.softmax(-1), v).flatten(2)

    def forward(
        self, latent: Tensor, timestep: float, first: int, recompute: bool = False
    ) -> Tensor:
        """One pass; leaves its keys and values in the caches."""
        batch, frames, channels, height, width = latent.shape
        rows, cols = height // 2, width // 2
        tokens = frames * rows * cols
        x = torch.nn.functional.conv3d(
            latent.transpose(1, 2),
            self.weights["patch_embedding.weight"],
            self.weights["patch_embedding.bias"],
            stride=(1, 2, 2),
        )
        x = x.flatten(2).transpose(1, 2)
        half = self.freq_dim // 2
        angles = timestep * torch.pow(10000.0, -torch.arange(half, dtype=torch.float64) / half)
        sinusoid = torch.cat([angles.cos(), angles.sin()]).to(x.dtype)[None]
        e = self.linear("condition_embedder.time_embedder.linear_1", sinusoid)
        e = self.linear("condition_embedder.time_embedder.linear_2", e * torch.sigmoid(e))
        modulation = self.linear("condition_embedder.time_proj", e * torch.sigmoid(e))
        modulation = modulation.reshape(1, 6, -1)
        text = self.linear("condition_embedder.text_embedder.linear_1", self.text)
        text = self.linear("condition_embedder.text_embedder.linear_2", self.gelu(text))

        for i, cache in enumerate(self.caches):
            name = f"blocks.{i}"
            m = self.weights[f"{name}.scale_shift_table"] + modulation
            shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = (m[:, j : j + 1] for j in range(6))
            h = self.norm(x) * (1 + scale_a) + shift_a
            q, k, v = (self.linear(f"{name}.attn1.to_{p}", h) for p in "qkv")
            q = self.rms(f"{name}.attn1.norm_q.weight", q)
            k = self.rms(f"{name}.attn1.norm_k.weight", k)
            q, k, v = (t.reshape(batch, tokens, self.heads, -1) for t in (q, k, v))
            q, k = (self.rope(t, first, frames, rows, cols) for t in (q, k))
            self.store(cache, k, v, first, rows * cols, recompute)
            a = self.attention(q, cache.k, cache.v)
            x = x + self.linear(f"{name}.attn1.to_out.0", a) * gate_a
            h = self.norm(x) * self.weights[f"{name}.norm2.weight"]
            h = h + self.weights[f"{name}.norm2.bias"]
            q = self.rms(f"{name}.attn2.norm_q.weight", self.linear(f"{name}.attn2.to_q", h))
            k = self.rms(f"{name}.attn2.norm_k.weight", self.linear(f"{name}.attn2.to_k", text))
            v = self.linear(f"{name}.attn2.to_v", text)
            q, k, v = (t.reshape(batch, t.shape[1], self.heads, -1) for t in (q, k, v))
            x = x + self.linear(f"{name}.attn2.to_out.0", self.attention(q, k, v))
            h = self.norm(x) * (1 + scale_f) + shift_f
            h = self.linear(
                f"{name}.ffn.net.2", self.gelu(self.linear(f"{name}.ffn.net.0.proj", h))
            )
            x = x + h * gate_f

        table = self.weights["scale_shift_table"] + e[:, None]
        x = self.linear("proj_out", self.norm(x) * (1 + table[:, 1:]) + table[:, :1])
        x = x.reshape(batch, frames, rows, cols, 2, 2, channels)
        return torch.einsum("bfhwpqc->bfchpwq", x).reshape(latent.shape)

    def store(
        self, cache: RollCache, k: Tensor, v: Tensor, first: int, frame: int, recompute: bool
    ) -> None:
        """Appends, or overwrites the same block's tokens, then rolls out what is too old."""
        window, sink = self.window * frame, self.sink * frame
        start = (first - self.first_frame) * frame
        if recompute:  # all of a short stream; of a longer one all but the sink
            if start == 0:
                cache.k, cache.v = k, v
            else:
                kept = window - sink
                cache.k = torch.cat([cache.k[:, :sink], k[:, -kept:]], 1)
                cache.v = torch.cat([cache.v[:, :sink], v[:, -kept:]], 1)
            return
        if cache.k is None:
            cache.k, cache.v = k[:, :0], v[:, :0]
        if start < cache.seen:  # another pass over the newest block
            cache.k = cache.k[:, : cache.k.shape[1] - k.shape[1]]
            cache.v = cache.v[:, : cache.v.shape[1] - v.shape[1]]
        cache.k, cache.v = torch.cat([cache.k, k], 1), torch.cat([cache.v, v], 1)
        excess = max(0, cache.k.shape[1] - window)
        cache.k = torch.cat([cache.k[:, :sink], cache.k[:, sink + excess :]], 1)
        cache.v = torch.cat([cache.v[:, :sink], cache.v[:, sink + excess :]], 1)
        cache.seen = start + k.shape[1]

    def switch(self, text: Tensor) -> None:
        self.text = text
        count = len(self.frames)
        n = min(self.window, count)
        if n == 0:
            return
        newest = torch.stack(self.frames[count - n :], 1)
        self.forward(newest, 0.0, self.position - n, recompute=True)

    def sigma(self, step: int) -> float:
        s = step / 1000
        return self.shift * s / (1 + (self.shift - 1) * s)

    def block(self, noise: Tensor) -> Tensor:
        """``noise`` ``[steps, B, F, C, h, w]`` to the block's clean latent."""
        x = noise[0]
        for i, step in enumerate(self.steps):
            flow = self.forward(x, 1000 * self.sigma(step), self.position)
            clean = x - self.sigma(step) * flow
            if i + 1 < len(self.steps):
                sigma = self.sigma(self.steps[i + 1])
                x = (1 - sigma) * clean + sigma * noise[i + 1]
        self.forward(clean, 0.0, self.position)
        self.frames += list(clean.unbind(1))
        self.position += clean.shape[1]
        return clean
