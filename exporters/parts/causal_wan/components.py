"""The components a causal Wan transformer is run as, and their signatures."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.causal_wan.layers import Block, equal_last_rows
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.causal_wan.part import CausalWanPart
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec


class TextKv(nn.Module):
    """Component ``text_kv``: text embeddings to every layer's cross-attention keys and values."""

    def __init__(self, transformer: CausalWan) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, text_embeds: Tensor, padding: Tensor, *states: Tensor) -> tuple[()]:
        """Writes ``text.padding`` ``[B]``, and ``text.k.i`` and ``text.v.i`` ``[B, L, H, D]``."""
        model = self.transformer
        padding.copy_(equal_last_rows(text_embeds))
        text = model.condition_embedder.text_embedder(text_embeds.to(model.dtype))
        for block, key, value in zip(model.layers, states[::2], states[1::2], strict=True):
            key.copy_(block.attn2.keys(text))
            value.copy_(block.attn2.values(text))
        return ()


class _Pass(nn.Module):
    """The base of ``denoise`` and ``kv_update``."""

    def __init__(self, transformer: CausalWan, sink: int) -> None:
        super().__init__()
        self.transformer = transformer
        self.sink = sink

    def run(
        self,
        layers: Sequence[Block],
        latent: Tensor,
        modulation: Tensor,
        rope: tuple[Tensor, Tensor],
        position: Tensor,
        valid_length: Tensor,
        padding: Tensor,
        states: Sequence[Tensor],
    ) -> Tensor:
        """The latent's tokens after ``layers``, ``[B, T, dim]``.

        ``states`` are, layer by layer, ``text.k.i, text.v.i, ring.k.i, ring.v.i``.
        """
        x = self.transformer.patchify(latent)
        slots = self.transformer.config.text_len
        # Kernels need a length from 1 to the number of slots, also where no text was set.
        length = slots + 1 - padding.to(torch.int32).clamp(1, slots)
        for index, block in enumerate(layers):
            text_k, text_v, ring_k, ring_v = states[4 * index : 4 * index + 4]
            text, ring = (text_k, text_v, length), (ring_k, ring_v)
            x = block(x, modulation, rope, text, ring, position, valid_length, self.sink)
        return x


class Denoise(_Pass):
    """Component ``denoise``: a noisy latent block to its flow; writes its keys and values."""

    def forward(
        self,
        latent: Tensor,
        timestep: Tensor,
        rope_cos: Tensor,
        rope_sin: Tensor,
        position: Tensor,
        valid_length: Tensor,
        padding: Tensor,
        *states: Tensor,
    ) -> tuple[Tensor]:
        """The flow, float32 ``[B, F, C, h, w]``; the arguments are those of its signature."""
        model = self.transformer
        time, modulation = model.condition_embedder.time(timestep, model.dtype)
        rope = (rope_cos, rope_sin)
        x = self.run(
            model.layers, latent, modulation, rope, position, valid_length, padding, states
        )
        return (model.head(x, time, latent.shape[3] // model.config.patch[1]),)


class KvUpdate(_Pass):
    """Components ``kv_update`` and ``recache_n``: clean latents to their keys and values.

    Ends right after the last layer's keys and values, so that a compiler drops the rest.
    """

    def forward(
        self,
        latent: Tensor,
        timestep: Tensor,
        rope_cos: Tensor,
        rope_sin: Tensor,
        position: Tensor,
        valid_length: Tensor,
        padding: Tensor,
        *states: Tensor,
    ) -> tuple[()]:
        """Writes ``ring.k.i`` and ``ring.v.i``; the last layer takes no text states."""
        model = self.transformer
        _, modulation = model.condition_embedder.time(timestep, model.dtype)
        rope = (rope_cos, rope_sin)
        *layers, last = model.layers
        *before, ring_k, ring_v = states
        x = self.run(layers, latent, modulation, rope, position, valid_length, padding, before)
        normed = last.attention_input(x, modulation)
        last.write_keys_values(normed, rope, (ring_k, ring_v), position, self.sink)
        return ()


def components(part: CausalWanPart, transformer: nn.Module) -> dict[str, Component]:
    """The components of a ``CausalWan``, by name; they share its parameters."""
    assert isinstance(transformer, CausalWan)
    block, aligned = part.block, part.aligned
    sink = part.sink * part.frame_tokens
    signatures = _Signatures(part, DTYPE_NAMES[transformer.dtype])
    updates = {"kv_update": block} | {f"recache_{n}": n for n in part.recache_frames}
    return {
        "text_kv": Component("text_kv", TextKv(transformer), signatures.text_kv()),
        "denoise": Component(
            "denoise", Denoise(transformer, sink), signatures.denoise(block), aligned
        ),
    } | {
        name: Component(name, KvUpdate(transformer, sink), signatures.kv_update(frames), aligned)
        for name, frames in updates.items()
    }


class _Signatures:
    def __init__(self, part: CausalWanPart, dtype: str) -> None:
        self.part = part
        self.dtype = dtype

    def text_kv(self) -> Signature:
        sizes = self.part.config
        embeds = (self.part.batch, sizes.text_len, sizes.text_dim)
        states = [s for i in range(sizes.layers) for s in self._text(i, Access.WRITE)]
        inputs = TensorSpec("text_embeds", embeds, "float32", Role.INPUT)
        return Signature((inputs, self._padding(Access.WRITE), *states))

    def denoise(self, frames: int) -> Signature:
        layers = range(self.part.config.layers)
        states = [s for i in layers for s in (*self._text(i, Access.READ), *self._ring(i))]
        flow = TensorSpec("flow", self._latent(frames), "float32", Role.OUTPUT)
        padding = self._padding(Access.READ)
        return Signature((*self._inputs(frames), padding, *states, flow))

    def kv_update(self, frames: int) -> Signature:
        *layers, last = range(self.part.config.layers)
        states = [s for i in layers for s in (*self._text(i, Access.READ), *self._ring(i))]
        # The last layer writes its keys and values without reading them back.
        padding = self._padding(Access.READ)
        return Signature((*self._inputs(frames), padding, *states, *self._ring(last)))

    def _latent(self, frames: int) -> tuple[int, ...]:
        return (self.part.batch, frames, self.part.config.channels, *self.part.latent)

    def _inputs(self, frames: int) -> tuple[TensorSpec, ...]:
        angles = (frames * self.part.frame_tokens, self.part.config.head_dim // 2)
        return (
            TensorSpec("latent", self._latent(frames), "float32", Role.INPUT),
            TensorSpec("timestep", (self.part.batch, frames), "float32", Role.INPUT),
            TensorSpec("rope_cos", angles, "float32", Role.INPUT),
            TensorSpec("rope_sin", angles, "float32", Role.INPUT),
            TensorSpec("position", (1,), "int64", Role.INPUT),
            TensorSpec("valid_length", (1,), "int64", Role.INPUT),
        )

    def _padding(self, access: Access) -> TensorSpec:
        # Float32, so that validation finds a value that was never written.
        return TensorSpec("text.padding", (self.part.batch,), "float32", Role.STATE, access)

    def _states(self, prefix: str, layer: int, tokens: int, access: Access) -> list[TensorSpec]:
        sizes = self.part.config
        shape = (self.part.batch, tokens, sizes.heads, sizes.head_dim)
        return [
            TensorSpec(f"{prefix}.{part}.{layer}", shape, self.dtype, Role.STATE, access)
            for part in ("k", "v")
        ]

    def _text(self, layer: int, access: Access) -> list[TensorSpec]:
        return self._states("text", layer, self.part.config.text_len, access)

    def _ring(self, layer: int) -> list[TensorSpec]:
        tokens = self.part.window * self.part.frame_tokens
        return self._states("ring", layer, tokens, Access.READ_WRITE)
