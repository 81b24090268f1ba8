"""Many blocks in one forward with gradients, and streams without: the runtime's arithmetic.

A *group* is one pass over one block of latent frames. A clip in training has up to three groups of
a block: its clean latent (as ``kv_update`` runs it), the same under a new prompt (``recache_N``)
and its noisy latent (``denoise``). Each group attends to the groups whose keys and values the ring
would hold at that time, so a clip is one batch of small dense attentions. Parameters and functions
of a layer are vidc's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

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
"""Keys and values of one layer, each ``[B, G, T, H, D]`` with T tokens a block."""
LayerFunction = Callable[..., tuple[Tensor, Tensor, Tensor]]


@dataclass(frozen=True)
class Groups:
    """G passes over one block each."""

    blocks: tuple[int, ...]  # Absolute index of each block.
    prompts: tuple[int, ...]  # Index of each one's prompt.
    keys: tuple[tuple[int, ...], ...]  # What each sees: indices into past groups, then these.
    rows: tuple[int, ...] = ()  # Index of each block within its clip.


def in_ring(block: int, stream: StreamSpec) -> list[int]:
    """Absolute blocks that the ring holds once ``block`` is written, ascending."""
    newest = range(max(0, block - (stream.window - stream.sink) // stream.block + 1), block + 1)
    return [*range(min(stream.sink // stream.block, newest.start)), *newest]


def recached(end: int, stream: StreamSpec) -> range:
    """Absolute blocks that a prompt switch after ``end`` blocks recomputes."""
    return range(end - stream.recached(end * stream.block) // stream.block, end)


def clip_groups(
    positions: Sequence[int], stream: StreamSpec, switch: int | None = None, noisy_from: int = 0
) -> Groups:
    """The groups of a clip: clean and recached ones, then the noisy ones in the clip's order.

    ``positions`` are absolute blocks, ascending: all, or the sink and a stretch from far on.
    ``switch`` is the index of the first block under the second prompt, ``noisy_from`` that of the
    first block with a noisy group.
    """
    count = len(positions)
    turn = count if switch is None else switch
    again = [] if switch is None else [*recached(positions[switch], stream)]
    again = [i for i in range(turn) if positions[i] in again]
    order = [
        *(("clean", i) for i in range(min(turn, count - 1))),
        *(("again", i) for i in again),
        *(("clean", i) for i in range(turn, count - 1)),
        *(("noisy", i) for i in range(noisy_from, count)),
    ]
    place = {group: index for index, group in enumerate(order)}

    def sight(kind: str, index: int) -> tuple[int, ...]:
        # Recached blocks are computed together, so all of them see what the last one sees.
        last = again[-1] if kind == "again" else index
        seen = [i for i in range(count) if positions[i] in in_ring(positions[last], stream)]
        after = kind == "again" or index >= turn
        past = {i: "again" if i in again and after else "clean" for i in seen}
        return tuple(place[kind if i == index else past[i], i] for i in seen)

    return Groups(
        blocks=tuple(positions[i] for _, i in order),
        prompts=tuple(int(kind == "again" or i >= turn) for kind, i in order),
        keys=tuple(sight(kind, i) for kind, i in order),
        rows=tuple(i for _, i in order),
    )


class Transformer:
    """A transformer over groups of streams of at most ``blocks`` blocks.

    Matrix products are computed in the weights' dtype; ``layer`` may be ``run_layer`` compiled.
    """

    def __init__(
        self, model: CausalWan, stream: StreamSpec, blocks: int, layer: LayerFunction | None = None
    ) -> None:
        self.model = model
        self.stream = stream
        self._layer = layer or run_layer
        device = model.scale_shift_table.device
        tokens = stream.block * stream.frame_tokens
        tables = [torch.empty(blocks * tokens, stream.head_dim // 2, device=device) for _ in "cs"]
        first = torch.zeros(1, dtype=torch.int64, device=device)
        Rope(stream, torch.device(device)).fill(tables[0], tables[1], first)
        self._angles = [table.view(blocks, tokens, -1) for table in tables]

    def using(self, model: CausalWan) -> "Transformer":
        """The same over another network of these sizes."""
        other = object.__new__(Transformer)
        other.__dict__.update(self.__dict__, model=model)
        return other

    def text(self, embeds: Tensor) -> list[KeysValues]:
        """Keys and values of prompts ``[B, P, L, E]`` by layer, each ``[B, P, L, H, D]``."""
        shape = embeds.shape[:2]
        text = self.model.condition_embedder.text_embedder(
            embeds.flatten(0, 1).to(self.model.dtype)
        )
        return [
            (b.attn2.keys(text).unflatten(0, shape), b.attn2.values(text).unflatten(0, shape))
            for b in self.model.layers
        ]

    def __call__(
        self,
        latents: Tensor,
        levels: Tensor,
        groups: Groups,
        text: Sequence[KeysValues],
        past: Sequence[tuple[Tensor, ...]] = (),
        flow_from: int = 0,
    ) -> tuple[Tensor, list[KeysValues]]:
        """Flows of groups from ``flow_from`` on, and keys and values of all groups by layer.

        ``latents`` are ``[B, G, F, C, h, w]``, as are float32 flows; ``levels`` the shares of noise
        ``[B, G]``, ``past`` the keys and values of earlier groups by layer.
        """
        model, (batch, count, frames) = self.model, latents.shape[:3]
        device = latents.device
        slots = max(len(keys) for keys in groups.keys)
        padded = [(*keys, *[-1] * (slots - len(keys))) for keys in groups.keys]
        seen = torch.tensor(padded, device=device)
        mask = None if all(len(k) == slots for k in groups.keys) else seen >= 0
        sight = (seen.clamp_min(0), mask, torch.tensor(groups.prompts, device=device))
        blocks = torch.tensor(groups.blocks, device=device)
        rope = (self._angles[0][blocks].flatten(0, 1), self._angles[1][blocks].flatten(0, 1))
        times = (1000 * levels[:, :, None]).expand(batch, count, frames).flatten(1)
        time, modulation = model.condition_embedder.time(times, model.dtype)
        x, made = model.patchify(latents.flatten(1, 2)), []
        for index, block in enumerate(model.layers):
            before = past[index] if past else None
            x, keys, values = self._layer(block, x, modulation, rope, text[index], sight, before)
            made.append((keys, values))
        x = x.unflatten(1, (count, -1))[:, flow_from:].flatten(1, 2)
        time = time.unflatten(1, (count, -1))[:, flow_from:].flatten(1, 2)
        flow = model.head(x, time, self.stream.grid[0])
        return flow.unflatten(1, (-1, frames)), made


def run_layer(
    block: Block,
    x: Tensor,
    modulation: Tensor,
    rope: tuple[Tensor, Tensor],
    text: KeysValues,
    sight: tuple[Tensor, Tensor | None, Tensor],
    past: tuple[Tensor, ...] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over all groups: float32 ``[B, G * T, dim]`` to the same, its keys and values."""
    seen, mask, prompt = sight
    count = prompt.shape[0]
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = block.modulation(modulation)
    normed = modulated_norm(x, shift, scale, block.eps).to(block.dtype)
    queries = rotate(block.attn1.queries(normed), *rope).unflatten(1, (count, -1))
    keys = rotate(block.attn1.keys(normed), *rope).unflatten(1, (count, -1))
    values = block.attn1.values(normed).unflatten(1, (count, -1))
    every = [keys, values] if past is None else [
        torch.cat([old, new], 1) for old, new in zip(past, (keys, values), strict=True)
    ]  # fmt: skip
    ring = [e.index_select(1, seen.flatten()).unflatten(1, seen.shape).flatten(2, 3) for e in every]
    visible = None if mask is None else mask.repeat_interleave(keys.shape[2], 1)
    attended = _attend(queries, ring[0], ring[1], visible)
    x = gated_residual(x, block.attn1.out(attended.flatten(1, 2)), gate)

    crossing = block.attn2.queries(layer_norm(x, block.eps, block.norm2).to(block.dtype))
    attended = _attend(crossing.unflatten(1, (count, -1)), text[0][:, prompt], text[1][:, prompt])
    x = x + block.attn2.out(attended.flatten(1, 2))
    hidden = block.ffn(modulated_norm(x, ffn_shift, ffn_scale, block.eps).to(block.dtype))
    return gated_residual(x, hidden, ffn_gate), keys, values


def _attend(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None = None) -> Tensor:
    """Attention within each group: ``[B, G, T, H, D]`` over ``[B, G, S, H, D]``."""
    shape = queries.shape[:2]
    q, k, v = (each.flatten(0, 1).transpose(1, 2) for each in (queries, keys, values))
    mask = None
    if visible is not None:
        mask = visible.expand(shape[0], -1, -1).flatten(0, 1)[:, None, None]
        mask = mask.expand(-1, 1, q.shape[2], -1)
    attended: Tensor = F.scaled_dot_product_attention(q, k, v, mask)
    grouped: Tensor = attended.transpose(1, 2).unflatten(0, shape)
    return grouped


class Rollout:
    """Streams of a batch without gradients, block by block, as sessions generate them."""

    def __init__(self, transformer: Transformer, text: Sequence[KeysValues]) -> None:
        self._transformer = transformer
        self._text = text
        self._prompt = 0
        self._ring: dict[int, list[KeysValues]] = {}
        self._latents: dict[int, Tensor] = {}

    def generate(self, noise: Tensor, levels: Sequence[float], block: int) -> Tensor:
        """A block in few steps from noise ``[steps, B, F, C, h, w]``; the stream stays."""
        latent = noise[0]
        for index, level in enumerate(levels):
            if index:
                latent = torch.lerp(latent, noise[index], level)
            latent = latent - level * self._run([block], latent[:, None], level)[0][:, 0]
        return latent

    def remember(self, latent: Tensor, block: int) -> None:
        """Appends a clean latent ``[B, F, C, h, w]`` as a block of the stream."""
        self._write([block], latent[:, None])
        for old in self._ring.keys() - set(in_ring(block, self._transformer.stream)):
            del self._ring[old], self._latents[old]

    def switch_prompt(self, block: int) -> None:
        """Takes the next prompt before ``block`` and recomputes the window; the sink stays."""
        self._prompt += 1
        known = [b for b in recached(block, self._transformer.stream) if b in self._ring]
        if known:
            self._write(known, torch.stack([self._latents[b] for b in known], 1))

    def _write(self, blocks: list[int], latents: Tensor) -> None:
        _, made = self._run(blocks, latents, 0.0)
        for index, block in enumerate(blocks):
            self._ring[block] = [(k[:, index, None], v[:, index, None]) for k, v in made]
            self._latents[block] = latents[:, index]

    @torch.no_grad()
    def _run(
        self, blocks: list[int], latents: Tensor, level: float
    ) -> tuple[Tensor, list[KeysValues]]:
        held = in_ring(blocks[-1], self._transformer.stream)
        past = [b for b in held if b in self._ring and b not in blocks]
        keys = tuple(range(len(past) + len(blocks)))
        groups = Groups(tuple(blocks), (self._prompt,) * len(blocks), (keys,) * len(blocks))
        layers = range(len(self._transformer.model.layers))
        before = [
            tuple(torch.cat([self._ring[b][i][part] for b in past], 1) for part in (0, 1))
            for i in layers
            if past
        ]
        levels = torch.full(latents.shape[:2], level, device=latents.device)
        return self._transformer(latents, levels, groups, self._text, before)
