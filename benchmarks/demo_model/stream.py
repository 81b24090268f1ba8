"""Streams of a batch, block by block: the calls and the arithmetic of a session.

Parameters and functions of a layer are vidc's own.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from vidc.exporters.parts.causal_wan.layers import (
    Block,
    gated_residual,
    layer_norm,
    modulated_norm,
    rotate,
)
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.runtime.programs.rope import Rope
from vidc.runtime.programs.stream import StreamSpec

KeysValues = tuple[Tensor, Tensor]
"""Keys and values of one layer, each ``[B, T, H, D]``."""


class Angles:
    """The runtime's rotary angles, computed once for each stretch of blocks."""

    def __init__(self, spec: StreamSpec, device: torch.device) -> None:
        self._spec, self._device, self._rope = spec, device, Rope(spec, device)
        self._known: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines of ``count`` blocks from ``first`` on, each ``[T, D / 2]``."""
        if (first, count) not in self._known:
            tokens = count * self._spec.block * self._spec.frame_tokens
            cos, sin = torch.empty(2, tokens, self._spec.head_dim // 2, device=self._device)
            frame = torch.tensor([first * self._spec.block], device=self._device)
            self._rope.fill(cos, sin, frame)
            self._known[first, count] = (cos, sin)
        return self._known[first, count]


def in_ring(block: int, spec: StreamSpec) -> list[int]:
    """Absolute blocks that the ring holds once ``block`` is written, ascending."""
    newest = range(max(0, block - (spec.window - spec.sink) // spec.block + 1), block + 1)
    return [*range(min(spec.sink // spec.block, newest.start)), *newest]


class Stream:
    """Streams of a batch, each with as many prompts as ``embeds`` ``[B, P, L, E]`` has."""

    def __init__(self, model: CausalWan, embeds: Tensor, angles: Angles, spec: StreamSpec) -> None:
        self._model, self._angles, self._spec = model, angles, spec
        self._texts = embeds.unbind(1)
        self._ring: dict[int, list[KeysValues]] = {}
        self._latents: dict[int, Tensor] = {}
        self._take_prompt(0)

    def flow(self, latent: Tensor, level: Tensor, block: int) -> Tensor:
        """Flow of a noisy block ``[B, F, C, h, w]`` at shares of noise ``[B]``; changes nothing."""
        x, time, _ = self._run([block], latent, level)
        return self._model.head(x, time, self._spec.grid[0])

    @torch.no_grad()
    def generate(self, noise: Tensor, levels: Sequence[float], block: int) -> Tensor:
        """Samples a block from noise ``[steps, B, F, C, h, w]``; changes nothing."""
        latent = noise[0]
        for index, level in enumerate(levels):
            if index:
                latent = torch.lerp(latent, noise[index], level)
            share = latent.new_full((len(latent),), level)
            latent = latent - level * self.flow(latent, share, block)
        return latent

    def remember(self, latent: Tensor, block: int) -> None:
        """Appends a clean block to the stream."""
        self._write([block], latent)
        for old in self._ring.keys() - set(in_ring(block, self._spec)):
            del self._ring[old], self._latents[old]

    def switch_prompt(self, block: int) -> None:
        """Takes the next prompt; recomputes the window, less the sink once the ring is full."""
        self._take_prompt(self._prompt + 1)
        count = self._spec.recached(block * self._spec.block) // self._spec.block
        if known := [b for b in range(block - count, block) if b in self._ring]:
            self._write(known, torch.cat([self._latents[b] for b in known], 1))

    def _take_prompt(self, prompt: int) -> None:
        model, self._prompt = self._model, prompt
        text = model.condition_embedder.text_embedder(self._texts[prompt].to(model.dtype))
        self._text = [(b.attn2.keys(text), b.attn2.values(text)) for b in model.layers]

    def _write(self, blocks: list[int], latents: Tensor) -> None:
        level = latents.new_full((len(latents),), self._spec.context_timestep / 1000)
        _, _, made = self._run(blocks, latents, level)
        count = len(blocks)
        for index, block in enumerate(blocks):
            self._ring[block] = [
                (keys.chunk(count, 1)[index], values.chunk(count, 1)[index])
                for keys, values in made
            ]
            self._latents[block] = latents.chunk(count, 1)[index]

    def _run(
        self, blocks: list[int], latents: Tensor, level: Tensor
    ) -> tuple[Tensor, Tensor, list[KeysValues]]:
        """Tokens after all layers, time embedding, keys and values of consecutive blocks."""
        model, made = self._model, []
        past = [b for b in in_ring(blocks[-1], self._spec) if b in self._ring and b not in blocks]
        rope = self._angles(blocks[0], len(blocks))
        times = (1000 * level[:, None]).expand(-1, latents.shape[1])
        time, modulation = model.condition_embedder.time(times, model.dtype)
        x = model.patchify(latents)
        for index, block in enumerate(model.layers):
            ring = [self._ring[b][index] for b in past]
            attend, attend_text = (
                partial(_attend_ring, ring),
                partial(_attend_text, self._text[index]),
            )
            x, keys, values = run_layer(block, x, modulation, rope, attend, attend_text)
            made.append((keys, values))
        return x, time, made


def _attend_ring(
    ring: Sequence[KeysValues], queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    read_keys, read_values = (
        torch.cat(each, 1) for each in zip(*ring, (keys, values), strict=True)
    )
    return attention(queries, read_keys, read_values)


def _attend_text(text: KeysValues, queries: Tensor) -> Tensor:
    return attention(queries, *text)


def run_layer(
    block: Block,
    x: Tensor,
    modulation: Tensor,
    rope: tuple[Tensor, Tensor],
    attend: Callable[[Tensor, Tensor, Tensor], Tensor],
    attend_text: Callable[[Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:
    """Runs one layer; returns its output, float32 ``[B, T, dim]``, its keys and its values.

    ``attend`` gets their queries, keys and values ``[B, T, H, D]``, ``attend_text`` the queries.
    """
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = block.modulation(modulation)
    normed = modulated_norm(x, shift, scale, block.eps).to(block.dtype)
    queries = rotate(block.attn1.queries(normed), *rope)
    keys, values = rotate(block.attn1.keys(normed), *rope), block.attn1.values(normed)
    x = gated_residual(x, block.attn1.out(attend(queries, keys, values)), gate)
    crossing = block.attn2.queries(layer_norm(x, block.eps, block.norm2).to(block.dtype))
    x = x + block.attn2.out(attend_text(crossing))
    hidden = block.ffn(modulated_norm(x, ffn_shift, ffn_scale, block.eps).to(block.dtype))
    return gated_residual(x, hidden, ffn_gate), keys, values


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of ``[B, T, H, D]`` to ``[B, R, H, D]``."""
    q, k, v = (each.transpose(1, 2) for each in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
