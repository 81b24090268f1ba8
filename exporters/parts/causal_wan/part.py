"""Part ``causal_wan``: the block-wise causal Wan transformer of LongLive and Self-Forcing."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from vidc.exporters.part import Attention, Part
from vidc.exporters.parts.causal_wan.config import TransformerConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.component import Component
    from vidc.plugins.signature import Signature

_PLAYED_RINGS = 3
"""Memory of a rollout in PyTorch, activations included, in multiples of all keys and values."""


@dataclass(frozen=True)
class CausalWanPart(Part):
    """A causal Wan transformer over a ring of latent frames.

    Attributes:
        config: sizes of the network.
        batch: videos side by side.
        block: latent frames generated at once.
        window: latent frames the ring holds, sink included.
        sink: latent frames at the start that never leave the ring.
        latent: height and width of a latent frame.
    """

    group: ClassVar[str] = "transformer"
    config: TransformerConfig
    batch: int
    block: int
    window: int
    sink: int
    latent: tuple[int, int]

    @property
    def frame_tokens(self) -> int:
        """Tokens of one latent frame."""
        return math.prod(self.latent) // math.prod(self.config.patch)

    @property
    def tokens(self) -> int:
        """Tokens of a block, of all videos."""
        return self.batch * self.block * self.frame_tokens

    @property
    def aligned(self) -> bool:
        """True if no block straddles the sink's end or the ring's wrap."""
        return self.sink % self.block == 0 and (self.window - self.sink) % self.block == 0

    def recached(self, end: int) -> int:
        """Latent frames that a prompt switch recomputes after ``end`` of them.

        All of them while they fit the window; later the window less the sink, which stays.
        """
        return end if end <= self.window else self.window - self.sink

    @property
    def recache_frames(self) -> tuple[int, ...]:
        """Numbers of latent frames that a prompt switch may recompute; each has a component.

        The frames of one block are left out: ``kv_update`` recomputes them.
        """
        filling = range(self.block, self.window + 1, self.block)
        ends = (*filling, self.window + self.block)
        return tuple(sorted({self.recached(end) for end in ends} - {self.block}))

    @property
    def component_names(self) -> tuple[str, ...]:
        """``text_kv``, ``denoise``, ``kv_update`` and a ``recache_n`` for each switch."""
        recache = (f"recache_{frames}" for frames in self.recache_frames)
        return ("text_kv", "denoise", "kv_update", *recache)

    def module(self) -> "nn.Module":
        """Returns a ``CausalWan``."""
        from vidc.exporters.parts.causal_wan.network import CausalWan

        return CausalWan(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of a ``CausalWan``."""
        from vidc.exporters.parts.causal_wan.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which attention is peaked."""
        from vidc.exporters.parts.causal_wan.random_weights import random_weight

        return random_weight(name, shape, seed)

    @property
    def config_settings(self) -> Mapping[str, Mapping[str, Any]]:
        """Settings in the config of diffusers' transformer and in Wan's own."""
        from vidc.exporters.parts.causal_wan.names import config_settings

        return config_settings(self.config)

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.causal_wan.names import disagreements

        return disagreements(found, expected)

    def export_settings(self, component: str) -> dict[str, Any]:
        """Returns all sizes; for ``text_kv`` those of the network and the batch alone."""
        settings = super().export_settings(component)
        if component == "text_kv":
            return {"config": settings["config"], "batch": self.batch}
        return settings

    def written_share(self, state: str, signature: "Signature") -> Fraction:
        """Returns the frames of the call over the window's for a ring, 1 for other states."""
        if not state.startswith("ring."):
            return Fraction(1)
        return Fraction(signature["latent"].shape[1], self.window)

    @property
    def weights_elements(self) -> int:
        """Elements of the matrices of all layers."""
        sizes = self.config
        # Each of two attentions has four square matrices.
        return sizes.layers * (8 * sizes.dim**2 + 2 * sizes.dim * sizes.ffn_dim)

    def working_elements(self, component: str) -> int:
        """Elements of the text's keys and values and, but for ``text_kv``, of the ring's.

        On an H200, longlive-1.3b at batch 2 in bf16 took 11 GB at most with a ring of 6.9 GB and
        weights of 2.8 GB, ``text_kv`` 1 to 2 GB: its program holds all weights when it is moved to
        the device.
        """
        width = 2 * self.config.layers * self.batch * self.config.dim
        return width * self.config.text_len + (0 if component == "text_kv" else self._ring)

    @property
    def playing_elements(self) -> int:
        """Elements of rings times ``_PLAYED_RINGS``: golden data took 75 GB (batch 2, H200)."""
        return _PLAYED_RINGS * self._ring

    @property
    def _ring(self) -> int:
        tokens = self.batch * self.window * self.frame_tokens
        return 2 * self.config.layers * tokens * self.config.dim

    @property
    def attentions(self) -> Mapping[str, Attention]:
        """Every self-attention, as ``blocks.0.attn1``."""
        slots = self.window * self.frame_tokens
        return {
            f"blocks.{layer}.attn1": Attention(
                self.config.heads, self.config.head_dim, self.tokens, slots, self.batch,
                f"ring.k.{layer}", f"ring.v.{layer}",
            )
            for layer in range(self.config.layers)
        }  # fmt: skip

    def rows(self, linear: str) -> int:
        """Rows that a denoising pass multiplies with a Linear's weight."""
        if "text_embedder" in linear or linear.endswith(("attn2.to_k", "attn2.to_v")):
            # Once a prompt, not once a pass.
            return 0
        if linear.startswith("condition_embedder."):
            return self.batch * self.block
        return self.tokens

    @property
    def other_products(self) -> tuple[tuple[int, int], ...]:
        """The patch embedding, a convolution that is a matmul."""
        sizes = self.config
        weight = sizes.dim * sizes.channels * math.prod(sizes.patch)
        return ((weight, self.tokens),)

    def frame_flops(self) -> float:
        """One pass over one latent frame with a full window: Linears and both attentions."""
        sizes = self.config
        slots = self.window * self.frame_tokens
        linear = 2 * (6 * sizes.dim**2 + 2 * sizes.dim * sizes.ffn_dim)
        attention = 4 * (slots + sizes.text_len) * sizes.dim
        return float(self.batch * sizes.layers * self.frame_tokens * (linear + attention))
