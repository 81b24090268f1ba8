"""The transformer over a batch of clips, for training: a session's calls and arithmetic.

A clip is a sequence of segments: one for each noisy block (its flow is the output) and one for each
clean block (later segments read its keys and values). A prompt switch adds the recomputed clean
blocks. ``flows`` runs all segments in one pass, which launches far fewer kernels than a loop over
blocks. ``generate`` runs one after the other, as a session does. Parameters and functions of a
layer are vidc's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vidc.exporters.parts.causal_wan import layers
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.runtime.programs.rope import Rope
from vidc.runtime.programs.stream import StreamSpec

R = TypeVar("R")


@dataclass(frozen=True)
class Layout:
    """Blocks of a clip."""

    positions: Sequence[int]  # Absolute indices in the stream.
    known: int = 0  # Leading blocks that are given; the others are to be generated.
    switch: int | None = None  # Index of the first block under prompt 1 in place of prompt 0.


@dataclass(frozen=True)
class Segment:
    """One block of the sequence."""

    index: int  # Of the block in the clip.
    prompt: int  # 0 before the switch, 1 after.
    reads: tuple[int, ...]  # Indices of the segments it attends to, itself included.
    noisy: bool


def segments(layout: Layout, spec: StreamSpec) -> list[Segment]:
    """Returns the segments of one clip, in the order of a session's calls."""
    made: list[Segment] = []
    ring: dict[int, int] = {}  # Segment of each block in the ring, oldest first.
    prompt, slots, sink = 0, spec.window // spec.block, spec.sink // spec.block
    for index, block in enumerate(layout.positions):
        if index == layout.switch:
            prompt = 1
            count = spec.recached(block * spec.block) // spec.block
            again = [each for each in ring if each >= block - count]
            ring |= {each: len(made) + at for at, each in enumerate(again)}
            reads = tuple(ring.values())
            made += [Segment(layout.positions.index(b), prompt, reads, noisy=False) for b in again]
        # The ring keeps the sink and the newest other blocks.
        ring = {b: at for b, at in ring.items() if b < sink or b > block - slots + sink}
        if index >= layout.known:
            made.append(Segment(index, prompt, (*ring.values(), len(made)), noisy=True))
        if index + 1 < len(layout.positions):  # Nothing reads the last block.
            made.append(Segment(index, prompt, (*ring.values(), len(made)), noisy=False))
            ring[block] = len(made) - 1
    return made


class Streams:
    """Passes over the segments of clips of one layout."""

    def __init__(self, layout: Layout, spec: StreamSpec, device: torch.device) -> None:
        self.segments, self.spec, self.layout = segments(layout, spec), spec, layout
        self._clean = spec.context_timestep / 1000
        rope, tokens = Rope(spec, device), spec.block * spec.frame_tokens
        self.angles = torch.empty(len(self.segments), 2, tokens, spec.head_dim // 2).to(device)
        for each, (cos, sin) in zip(self.segments, self.angles, strict=True):
            first = layout.positions[each.index] * spec.block
            rope.fill(cos, sin, torch.tensor([first], device=device))
        noisy = [at for at, each in enumerate(self.segments) if each.noisy]
        self._noisy = torch.tensor(noisy, device=device)

    def flows(
        self, model: CausalWan, history: Tensor, noisy: Tensor, levels: Tensor, embeds: Tensor
    ) -> Tensor:
        """Flows of noisy blocks ``[B, N, F, C, h, w]`` with shares of noise ``[B, N]``.

        Later blocks read ``history``, ``[B, blocks, F, C, h, w]``; ``embeds`` are ``[B, P, L, E]``.
        """
        blocks = iter(noisy.unbind(1))
        latents = [next(blocks) if s.noisy else history[:, s.index] for s in self.segments]
        every = levels.new_full((len(levels), len(latents)), self._clean)
        every = every.index_copy(1, self._noisy, levels)
        found = Pass(model, self, embeds)(range(len(latents)), torch.stack(latents, 1), every)
        return found.index_select(1, self._noisy)

    @torch.no_grad()
    def generate(
        self, model: CausalWan, history: Tensor, noise: Tensor, sigmas: Sequence[float],
        embeds: Tensor,
    ) -> Tensor:  # fmt: skip
        """Returns ``history`` with its unknown blocks sampled, each from the stream's own past.

        ``noise`` is ``[steps, B, N, F, C, h, w]``, ``sigmas`` its share at each step.
        """
        read, run = [*history.unbind(1)], Pass(model, self, embeds)
        for _, same in groupby(range(len(self.segments)), lambda at: self.segments[at].reads):
            group = [*same]  # One segment, or those that a switch recomputes together.
            if (first := self.segments[group[0]]).noisy:
                own = noise[:, :, first.index - self.layout.known]
                latent = own[0]
                for step, sigma in enumerate(sigmas):
                    if step:
                        latent = torch.lerp(latent, own[step], sigma)
                    level = latent.new_full((len(latent), 1), sigma)
                    latent = latent - sigma * run(group, latent[:, None], level)[:, 0]
                read[first.index] = latent
            else:
                latents = torch.stack([read[self.segments[at].index] for at in group], 1)
                run(group, latents, latents.new_full(latents.shape[:2], self._clean))
        return torch.stack(read, 1)


def fused(part: Callable[..., R]) -> Callable[..., R]:
    """Fuses a part of a layer on a GPU, where norms, rotations and gates one by one take long."""
    compiled = torch.compile(part, dynamic=True)
    return lambda block, x, *rest: (compiled if x.is_cuda else part)(block, x, *rest)


class Pass:
    """Runs a model on segments of clips, which read keys and values of the segments before."""

    def __init__(self, model: CausalWan, streams: Streams, embeds: Tensor) -> None:
        self._model, self._streams = model, streams
        texts = model.condition_embedder.text_embedder(embeds.to(model.dtype)).unbind(1)
        self._texts = [
            [torch.stack([block.attn2.keys(text), block.attn2.values(text)]) for text in texts]
            for block in model.layers
        ]
        self._cached: list[dict[int, Tensor]] = [{} for _ in model.layers]
        """Keys and values of segments by layer, ``[2, B, T, H, D]``."""

    def __call__(self, group: Sequence[int], latents: Tensor, levels: Tensor) -> Tensor:
        """Flows of the G segments of ``group``, whose keys and values are kept for later ones.

        Latents and flows are ``[B, G, F, C, h, w]``; ``levels`` are shares of noise ``[B, G]``.
        """
        model = self._model
        times = (1000 * levels).repeat_interleave(latents.shape[2], 1)
        time, modulation = model.condition_embedder.time(times, model.dtype)
        rope = torch.cat([self._streams.angles[at] for at in group], 1)
        x = model.patchify(latents.flatten(1, 2))
        segments = [self._streams.segments[at] for at in group]
        for block, texts, cached in zip(model.layers, self._texts, self._cached, strict=True):
            queries, pair = _own(block, x, modulation, *rope)
            cached |= zip(group, pair.chunk(len(group), 2), strict=True)
            past = [torch.cat([cached[read] for read in each.reads], 2) for each in segments]
            x, queries = _cross(block, x, modulation, attention(queries, past))
            text = [texts[each.prompt] for each in segments]
            x = _feed(block, x, modulation, attention(queries, text))
        rows, blocks = self._streams.spec.grid[0], (len(group), -1)
        flows: Tensor = model.head(x, time, rows).unflatten(1, blocks)
        return flows


@fused
def _own(
    block: layers.Block, x: Tensor, modulation: Tensor, cos: Tensor, sin: Tensor
) -> tuple[Tensor, Tensor]:
    """Queries of self-attention ``[B, G T, H, D]``; keys and values ``[2, B, G T, H, D]``."""
    normed = block.attention_input(x, modulation)
    keys = layers.rotate(block.attn1.keys(normed), cos, sin)
    pair = torch.stack([keys, block.attn1.values(normed)])
    return layers.rotate(block.attn1.queries(normed), cos, sin), pair


@fused
def _cross(
    block: layers.Block, x: Tensor, modulation: Tensor, attended: Tensor
) -> tuple[Tensor, Tensor]:
    """Adds self-attention's output to ``x``; also returns cross-attention's queries, like it."""
    x = layers.gated_residual(x, block.attn1.out(attended), block.modulation(modulation)[2])
    return x, block.attn2.queries(layers.layer_norm(x, block.eps, block.norm2).to(block.dtype))


@fused
def _feed(block: layers.Block, x: Tensor, modulation: Tensor, attended: Tensor) -> Tensor:
    """Adds cross-attention's output to ``x``, then that of the feed-forward."""
    *_, shift, scale, gate = block.modulation(modulation)
    x = x + block.attn2.out(attended)
    hidden = block.ffn(layers.modulated_norm(x, shift, scale, block.eps).to(block.dtype))
    return layers.gated_residual(x, hidden, gate)


def attention(queries: Tensor, read: Sequence[Tensor]) -> Tensor:
    """Attention of G segments' queries ``[B, G T, H, D]``, each to keys and values of its own."""
    made = []
    for own, (keys, values) in zip(queries.chunk(len(read), 1), read, strict=True):
        q, k, v = (each.transpose(1, 2) for each in (own, keys, values))
        made.append(scaled_dot_product_attention(q, k, v).transpose(1, 2))
    return torch.cat(made, 1)
