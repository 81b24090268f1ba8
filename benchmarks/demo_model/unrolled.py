"""Trains on all blocks of a batch of streams in one forward pass: an unrolled ``Stream``.

The sequence has a segment for each noisy block (its flow is the output) and for each clean block
(later segments read its keys and values). A prompt switch adds the recomputed clean blocks. A
training step launches a few thousand kernels, not the 25,000 of a loop over blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from demo_model.stream import Angles, KeysValues, attention, in_ring, run_layer
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.runtime.programs.stream import StreamSpec


@dataclass(frozen=True)
class Segment:
    """One block of the sequence."""

    block: int  # Absolute index in the stream.
    index: int  # Index in the clip; history[:, index] is its clean latent.
    prompt: int  # 0 before the switch, 1 after.
    reads: tuple[int, ...]  # Indices of the segments it attends to, itself included.
    noisy: bool


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
        if index + 1 < len(positions):
            ring[block] = len(made)
            made.append(Segment(block, index, prompt, (*past, len(made)), False))
            for old in ring.keys() - set(in_ring(block, spec)):
                del ring[old]
    return made


class Unrolled:
    """One forward pass over segments; holds their rotary angles and attention groups."""

    def __init__(self, made: Sequence[Segment], angles: Angles, spec: StreamSpec) -> None:
        self.segments, self._spec = made, spec
        cos, sin = zip(*(angles(each.block, 1) for each in made), strict=True)
        self._rope = (torch.cat(cos), torch.cat(sin))
        noisy = [at for at, each in enumerate(made) if each.noisy]
        self._noisy = torch.tensor(noisy, device=cos[0].device)
        lengths = sorted({len(each.reads) for each in made})
        self._groups = [
            [at for at, each in enumerate(made) if len(each.reads) == length] for length in lengths
        ]
        order = [at for group in self._groups for at in group]
        self._inverse = [order.index(at) for at in range(len(made))]

    def latents(self, history: Tensor, noisy: Tensor) -> Tensor:
        """Latents of all segments, ``[B, S, F, C, h, w]``.

        From clean blocks ``[B, blocks, ...]`` and the noisy ones in their order ``[B, N, ...]``.
        """
        blocks = iter(noisy.unbind(1))
        return torch.stack(
            [next(blocks) if each.noisy else history[:, each.index] for each in self.segments], 1
        )

    def flows(self, model: CausalWan, latents: Tensor, levels: Tensor, embeds: Tensor) -> Tensor:
        """Flows of the noisy segments, ``[B, N, F, C, h, w]``.

        From the segments' latents, the noisy ones' shares of noise ``[B, N]`` and the prompts'
        embeddings ``[B, P, L, E]``.
        """
        frames, tokens = self._spec.block, self._spec.block * self._spec.frame_tokens
        clean = self._spec.context_timestep / 1000
        every = levels.new_full((len(levels), len(self.segments)), clean)
        every = every.index_copy(1, self._noisy, levels)
        times = (1000 * every).repeat_interleave(frames, 1)
        time, modulation = model.condition_embedder.time(times, model.dtype)
        texts = model.condition_embedder.text_embedder(embeds.to(model.dtype)).unbind(1)
        x = model.patchify(latents.flatten(1, 2))
        for block in model.layers:
            text = [(block.attn2.keys(each), block.attn2.values(each)) for each in texts]
            attend_text = partial(self._attend_text, text)
            x, _, _ = run_layer(block, x, modulation, self._rope, self._attend, attend_text)
        x = x.unflatten(1, (-1, tokens)).index_select(1, self._noisy).flatten(1, 2)
        time = time.unflatten(1, (-1, frames)).index_select(1, self._noisy).flatten(1, 2)
        flows: Tensor = model.head(x, time, self._spec.grid[0]).unflatten(1, (-1, frames))
        return flows

    def _attend(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attention of ``[B, S T, H, D]``; segments that read equally many are computed at once."""
        q, k, v = (each.chunk(len(self.segments), 1) for each in (queries, keys, values))
        made: list[Tensor] = []
        for group in self._groups:
            reads = [read for at in group for read in self.segments[at].reads]
            read_keys, read_values = (
                torch.stack([each[read] for read in reads], 1)
                .unflatten(1, (len(group), -1))
                .flatten(2, 3)
                .flatten(0, 1)
                for each in (k, v)
            )
            group_queries = torch.stack([q[at] for at in group], 1).flatten(0, 1)
            attended = attention(group_queries, read_keys, read_values)
            made += attended.unflatten(0, (-1, len(group))).unbind(1)
        return torch.cat([made[at] for at in self._inverse], 1)

    def _attend_text(self, texts: Sequence[KeysValues], queries: Tensor) -> Tensor:
        """Attention of each segment to its prompt."""
        count = len(self.segments)
        keys, values = (
            torch.stack([each[each_segment.prompt] for each_segment in self.segments], 1).flatten(
                0, 1
            )
            for each in zip(*texts, strict=True)
        )
        attended = attention(queries.unflatten(1, (count, -1)).flatten(0, 1), keys, values)
        joined: Tensor = attended.unflatten(0, (-1, count)).flatten(1, 2)
        return joined
