"""The transformer over many blocks at once, with gradients: the runtime's arithmetic, no ring.

The parameters and the functions of a layer are vidc's own; what differs is where keys and values
come from. A group (see ``layout``) gathers those of the groups it may see, so attention is a batch
of small dense products: a mask over the whole clip would be nine tenths empty.
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
"""Of one layer: each ``[B, G, T, H, D]``, T tokens a block."""

LayerFunction = Callable[..., tuple[Tensor, Tensor, Tensor]]


class Angles:
    """The runtime's rotation angles of every block up to a limit, computed once."""

    def __init__(self, stream: StreamSpec, blocks: int, device: torch.device) -> None:
        tokens = stream.block * stream.frame_tokens
        shape = (blocks * tokens, stream.head_dim // 2)
        cos, sin = (torch.empty(shape, device=device) for _ in range(2))
        first = torch.zeros(1, dtype=torch.int64, device=device)
        Rope(stream, device).fill(cos, sin, first)
        self._cos, self._sin = (table.view(blocks, tokens, -1) for table in (cos, sin))

    def __call__(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines, each ``[G * T, D / 2]``, of absolute blocks ``[G]``."""
        return self._cos[blocks].flatten(0, 1), self._sin[blocks].flatten(0, 1)


@dataclass(frozen=True)
class Sight:
    """Where G groups find their keys and their prompt.

    Attributes:
        keys: int64 ``[G, slots]``, indices into past groups followed by these.
        visible: bool ``[G, slots]``.
        prompt: int64 ``[G]``, indices into the prompts.
        full: all of ``visible`` is true, so that attention needs no mask.
    """

    keys: Tensor
    visible: Tensor
    prompt: Tensor
    full: bool = False


def text_keys_values(model: CausalWan, embeds: Tensor) -> list[KeysValues]:
    """What ``text_kv`` writes: each layer's keys and values of prompts ``[B, P, L, E]``.

    Each ``[B, P, L, H, D]``.
    """
    batch, prompts = embeds.shape[:2]
    text = model.condition_embedder.text_embedder(embeds.flatten(0, 1).to(model.dtype))
    result = []
    for block in model.layers:
        keys, values = block.attn2.keys(text), block.attn2.values(text)
        result.append((keys.unflatten(0, (batch, prompts)), values.unflatten(0, (batch, prompts))))
    return result


def forward(
    model: CausalWan,
    latents: Tensor,
    timesteps: Tensor,
    rope: tuple[Tensor, Tensor],
    text: Sequence[KeysValues],
    sight: Sight,
    past: Sequence[KeysValues] | None = None,
    *,
    flow_of: slice | Tensor = slice(None),
    layer: LayerFunction | None = None,
) -> tuple[Tensor, list[KeysValues]]:
    """Flows of G groups, and the keys and values that each layer made of them.

    Args:
        model: the transformer.
        latents: ``[B, G, F, C, h, w]``.
        timesteps: ``[B, G]``, 0..1000, of all frames of a group.
        rope: see ``Angles``.
        text: see ``text_keys_values``.
        sight: which groups attend to which.
        past: keys and values of earlier groups, layer by layer, as this returns them.
        flow_of: the groups whose flow is wanted.
        layer: ``layer_forward``, or what ``torch.compile`` made of it.

    Returns:
        float32 ``[B, G', F, C, h, w]``, and layer by layer keys and values of the G groups.
    """
    batch, groups, frames = latents.shape[:3]
    run = layer or layer_forward
    per_frame = timesteps[:, :, None].expand(batch, groups, frames).flatten(1)
    time, modulation = model.condition_embedder.time(per_frame, model.dtype)
    x = model.patchify(latents.flatten(1, 2))
    made = []
    for index, block in enumerate(model.layers):
        before = past[index] if past else None
        x, keys, values = run(block, x, modulation, rope, text[index], sight, before)
        made.append((keys, values))
    wanted = x.unflatten(1, (groups, -1))[:, flow_of]
    time = time.unflatten(1, (groups, -1))[:, flow_of].flatten(1, 2)
    flow = model.head(wanted.flatten(1, 2), time, latents.shape[4] // model.config.patch[1])
    return flow.unflatten(1, (-1, frames)), made


def layer_forward(
    block: Block,
    x: Tensor,
    modulation: Tensor,
    rope: tuple[Tensor, Tensor],
    text: KeysValues,
    sight: Sight,
    past: KeysValues | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """One layer over ``x``, float32 ``[B, G * T, dim]``; see ``forward``."""
    groups = sight.prompt.shape[0]
    shift, scale, gate, ffn_shift, ffn_scale, ffn_gate = block.modulation(modulation)
    normed = modulated_norm(x, shift, scale, block.eps).to(block.dtype)
    keys = rotate(block.attn1.keys(normed), *rope).unflatten(1, (groups, -1))
    values = block.attn1.values(normed).unflatten(1, (groups, -1))
    queries = rotate(block.attn1.queries(normed), *rope).unflatten(1, (groups, -1))
    all_keys, all_values = keys, values
    if past is not None:
        all_keys, all_values = torch.cat([past[0], keys], 1), torch.cat([past[1], values], 1)
    attended = _attend(
        queries,
        _gathered(all_keys, sight.keys).flatten(2, 3),
        _gathered(all_values, sight.keys).flatten(2, 3),
        None if sight.full else sight.visible.repeat_interleave(keys.shape[2], 1),
    )
    x = gated_residual(x, block.attn1.out(attended.flatten(1, 2)), gate)

    crossing = block.attn2.queries(layer_norm(x, block.eps, block.norm2).to(block.dtype))
    prompt = [part[:, sight.prompt] for part in text]
    attended = _attend(crossing.unflatten(1, (groups, -1)), prompt[0], prompt[1], None)
    x = x + block.attn2.out(attended.flatten(1, 2))

    hidden = block.ffn(modulated_norm(x, ffn_shift, ffn_scale, block.eps).to(block.dtype))
    return gated_residual(x, hidden, ffn_gate), keys, values


def _gathered(parts: Tensor, groups: Tensor) -> Tensor:
    """``parts[:, groups]``, whose gradient is summed without sorting."""
    gathered: Tensor = parts.index_select(1, groups.flatten()).unflatten(1, groups.shape)
    return gathered


def _attend(queries: Tensor, keys: Tensor, values: Tensor, visible: Tensor | None) -> Tensor:
    """Attention within each group: ``[B, G, T, H, D]`` over ``[B, G, S, H, D]``.

    ``visible`` is bool ``[G, S]``.
    """
    batch, groups = queries.shape[:2]
    q, k, v = (each.flatten(0, 1).transpose(1, 2) for each in (queries, keys, values))
    mask = None
    if visible is not None:
        rows = visible.expand(batch, -1, -1).flatten(0, 1)
        mask = rows[:, None, None, :].expand(-1, 1, q.shape[2], -1)
    attended = F.scaled_dot_product_attention(q, k, v, mask)
    result: Tensor = attended.transpose(1, 2).unflatten(0, (batch, groups))
    return result
