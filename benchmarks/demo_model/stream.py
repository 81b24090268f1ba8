"""Streams of a batch of clips: the calls and the arithmetic of a session, for training.

A clip is a sequence of segments: one for each noisy block (its flow is the output) and one for each
clean block (later segments read its keys and values). A prompt switch adds the recomputed clean
blocks. ``flows`` runs all segments in one pass: a training step then launches a few thousand
kernels, not the 25,000 of a loop over blocks. ``generate`` runs one after the other, as a session
does. Parameters and functions of a layer are vidc's own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

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


@dataclass(frozen=True)
class Segment:
    """One block of the sequence."""

    block: int  # Absolute index in the stream.
    index: int  # Index in the clip.
    prompt: int  # 0 before the switch, 1 after.
    reads: tuple[int, ...]  # Indices of the segments it attends to, itself included.
    noisy: bool


def in_ring(block: int, spec: StreamSpec) -> list[int]:
    """Absolute blocks that the ring holds once ``block`` is written, ascending."""
    newest = range(max(0, block - (spec.window - spec.sink) // spec.block + 1), block + 1)
    return [*range(min(spec.sink // spec.block, newest.start)), *newest]


def segments(
    positions: Sequence[int], known: int, switch: int | None, spec: StreamSpec
) -> list[Segment]:
    """Returns the segments of one clip, in the order of a session's calls.

    Args:
        positions: absolute index of each block.
        known: number of leading blocks that are given and so have no noisy segment.
        switch: index before which prompt 1 replaces prompt 0; None keeps prompt 0.
        spec: sizes of the stream.
    """
    made: list[Segment] = []
    ring: dict[int, int] = {}  # Segment of each block in the ring.
    prompt = 0
    for index, block in enumerate(positions):
        if index == switch:
            prompt = 1
            count = spec.recached(block * spec.block) // spec.block
            again = [each for each in range(block - count, block) if each in ring]
            new = {each: len(made) + at for at, each in enumerate(again)}
            kept = [ring[b] for b in in_ring(block - 1, spec) if b in ring and b not in new]
            reads = (*kept, *new.values())
            made += [Segment(b, positions.index(b), prompt, reads, False) for b in again]
            ring |= new
        past = [ring[each] for each in in_ring(block, spec) if each in ring]
        if index >= known:
            made.append(Segment(block, index, prompt, (*past, len(made)), True))
        if index + 1 < len(positions):  # Nothing reads the last block.
            ring[block] = len(made)
            made.append(Segment(block, index, prompt, (*past, len(made)), False))
            for old in ring.keys() - set(in_ring(block, spec)):
                del ring[old]
    return made


class Streams:
    """Passes over the segments of clips of one layout; arguments as in ``segments``."""

    def __init__(
        self, positions: Sequence[int], known: int, switch: int | None, spec: StreamSpec,
        device: torch.device,
    ) -> None:  # fmt: skip
        self._segments, self._known = segments(positions, known, switch, spec), known
        self._spec, self._clean = spec, spec.context_timestep / 1000
        rope, tokens = Rope(spec, device), spec.block * spec.frame_tokens
        self._angles = torch.empty(len(self._segments), 2, tokens, spec.head_dim // 2).to(device)
        for each, (cos, sin) in zip(self._segments, self._angles, strict=True):
            rope.fill(cos, sin, torch.tensor([each.block * spec.block], device=device))
        noisy = [at for at, each in enumerate(self._segments) if each.noisy]
        self._noisy = torch.tensor(noisy, device=device)

    def flows(
        self, model: CausalWan, history: Tensor, noisy: Tensor, levels: Tensor, embeds: Tensor
    ) -> Tensor:
        """Returns the flows of the noisy blocks, ``[B, N, F, C, h, w]``.

        Args:
            model: transformer.
            history: clean blocks that later ones read, ``[B, blocks, F, C, h, w]``.
            noisy: blocks with noise, ``[B, N, F, C, h, w]``.
            levels: their shares of noise, ``[B, N]``.
            embeds: embeddings of P prompts, ``[B, P, L, E]``.
        """
        blocks = iter(noisy.unbind(1))
        latents = [next(blocks) if s.noisy else history[:, s.index] for s in self._segments]
        every = levels.new_full((len(levels), len(latents)), self._clean)
        every = every.index_copy(1, self._noisy, levels)
        run = Pass(model, self._segments, self._angles, self._spec, embeds)
        x, time = run(range(len(latents)), torch.stack(latents, 1), every)
        x, time = (each.index_select(1, self._noisy).flatten(1, 2) for each in (x, time))
        flows: Tensor = model.head(x, time, self._spec.grid[0]).unflatten(1, (-1, self._spec.block))
        return flows

    @torch.no_grad()
    def generate(
        self, model: CausalWan, embeds: Tensor, clean: Tensor, history: Tensor, noise: Tensor,
        levels: Sequence[float],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Samples all blocks but the known ones, each from the stream's own past.

        ``noise`` is ``[steps, B, N, F, C, h, w]``, ``levels`` its share at each step. Returns
        ``clean`` and ``history`` with the sampled blocks in them.
        """
        made, read = [*clean.unbind(1)], [*history.unbind(1)]
        run = Pass(model, self._segments, self._angles, self._spec, embeds)
        for _, same in groupby(range(len(self._segments)), lambda at: self._segments[at].reads):
            group = [*same]  # One segment, or those that a switch recomputes together.
            index = self._segments[group[0]].index
            if self._segments[group[0]].noisy:
                drawn = noise[:, :, index - self._known]
                made[index] = read[index] = run.sample(group[0], drawn, levels)
            else:
                latents = torch.stack([read[self._segments[at].index] for at in group], 1)
                run(group, latents, latents.new_full(latents.shape[:2], self._clean))
        return torch.stack(made, 1), torch.stack(read, 1)


class Pass:
    """A model on segments of streams, with the keys and values of those that have run."""

    def __init__(
        self, model: CausalWan, segments: Sequence[Segment], angles: Tensor, spec: StreamSpec,
        embeds: Tensor,
    ) -> None:  # fmt: skip
        self._model, self._segments, self._angles, self._spec = model, segments, angles, spec
        texts = model.condition_embedder.text_embedder(embeds.to(model.dtype)).unbind(1)
        self._texts = [[(b.attn2.keys(t), b.attn2.values(t)) for t in texts] for b in model.layers]
        self._known: list[dict[int, KeysValues]] = [{} for _ in model.layers]

    def __call__(
        self, group: Sequence[int], latents: Tensor, levels: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Tokens ``[B, G, T, dim]`` and time embeddings ``[B, G, F, dim]`` after all layers.

        From G segments' latents ``[B, G, F, C, h, w]`` and shares of noise ``[B, G]``.
        """
        model, frames = self._model, self._spec.block
        times = (1000 * levels).repeat_interleave(frames, 1)
        time, modulation = model.condition_embedder.time(times, model.dtype)
        cos, sin = (torch.cat([self._angles[at, i] for at in group]) for i in (0, 1))
        x = model.patchify(latents.flatten(1, 2))
        for block, texts, known in zip(model.layers, self._texts, self._known, strict=True):
            x = self._layer(block, x, modulation, (cos, sin), group, texts, known)
        return x.unflatten(1, (len(group), -1)), time.unflatten(1, (-1, frames))

    def sample(self, at: int, noise: Tensor, levels: Sequence[float]) -> Tensor:
        """Samples a segment's block from noise ``[steps, B, F, C, h, w]``."""
        latent = noise[0]
        for step, level in enumerate(levels):
            if step:
                latent = torch.lerp(latent, noise[step], level)
            x, time = self([at], latent[:, None], latent.new_full((len(latent), 1), level))
            flow = self._model.head(x[:, 0], time[:, 0], self._spec.grid[0])
            latent = latent - level * flow
        return latent

    def _layer(
        self, block: Block, x: Tensor, modulation: Tensor, rope: KeysValues, group: Sequence[int],
        texts: Sequence[KeysValues], known: dict[int, KeysValues],
    ) -> Tensor:  # fmt: skip
        """Runs one layer on tokens ``[B, G T, dim]``, and adds its keys and values to ``known``."""
        shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = block.modulation(modulation)
        normed = modulated_norm(x, shift, scale, block.eps).to(block.dtype)
        queries = rotate(block.attn1.queries(normed), *rope).chunk(len(group), 1)
        keys, values = rotate(block.attn1.keys(normed), *rope), block.attn1.values(normed)
        pairs = zip(*(each.chunk(len(group), 1) for each in (keys, values)), strict=True)
        known |= zip(group, pairs, strict=True)
        attended = self._attend(dict(zip(group, queries, strict=True)), known)
        x = gated_residual(x, block.attn1.out(attended), gate)
        crossing = block.attn2.queries(layer_norm(x, block.eps, block.norm2).to(block.dtype))
        prompts = [texts[self._segments[at].prompt] for at in group]
        read = (torch.stack(each, 1).flatten(0, 1) for each in zip(*prompts, strict=True))
        joined = attention(crossing.unflatten(1, (len(group), -1)).flatten(0, 1), *read)
        x = x + block.attn2.out(joined.unflatten(0, (-1, len(group))).flatten(1, 2))
        hidden = block.ffn(modulated_norm(x, ffn_shift, ffn_scale, block.eps).to(block.dtype))
        return gated_residual(x, hidden, ffn_gate)

    def _attend(self, queries: Mapping[int, Tensor], known: Mapping[int, KeysValues]) -> Tensor:
        """Attention of segments; those that read equally many are computed at once."""
        reads, made = {at: self._segments[at].reads for at in queries}, dict[int, Tensor]()
        for length in sorted({len(each) for each in reads.values()}):
            same = [at for at in queries if len(reads[at]) == length]
            keys, values = (
                torch.stack([known[read][i] for at in same for read in reads[at]], 1)
                .unflatten(1, (len(same), length))
                .flatten(2, 3)
                .flatten(0, 1)
                for i in (0, 1)
            )
            attended = attention(
                torch.stack([queries[at] for at in same], 1).flatten(0, 1), keys, values
            )
            made |= zip(same, attended.unflatten(0, (-1, len(same))).unbind(1), strict=True)
        return torch.cat([made[at] for at in queries], 1)


def attention(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of ``[B, T, H, D]`` to ``[B, R, H, D]``."""
    q, k, v = (each.transpose(1, 2) for each in (queries, keys, values))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
