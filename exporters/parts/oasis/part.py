"""Part ``oasis``: a diffusion transformer over a ring of latent frames."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from vidc.exporters.part import Part
from vidc.exporters.parts.oasis.config import GROUP, OasisConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.component import Component
    from vidc.plugins.signature import Signature

_PLAYED_RINGS = 3
"""Memory of a rollout in PyTorch, activations included, in multiples of all keys and values."""


@dataclass(frozen=True)
class OasisPart(Part):
    """An Oasis transformer that makes one latent frame after another.

    Attributes:
        config: sizes of the network.
        latent: height and width of a latent frame.
        window: frames that a ring holds, with the newest one.
        passes: passes of a frame: its denoising steps and the clean pass.
    """

    group: ClassVar[str] = GROUP
    config: OasisConfig
    latent: tuple[int, int]
    window: int
    passes: int

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of a frame's tokens."""
        return self.latent[0] // self.config.patch, self.latent[1] // self.config.patch

    @property
    def frame_tokens(self) -> int:
        """Tokens of a frame."""
        return math.prod(self.grid)

    @property
    def component_names(self) -> tuple[str, ...]:
        """``condition_frame``, ``denoise`` and ``kv_update``."""
        return ("condition_frame", "denoise", "kv_update")

    def module(self) -> "nn.Module":
        """Returns an ``OasisTransformer``."""
        from vidc.exporters.parts.oasis.network import OasisTransformer

        return OasisTransformer(self.config, self.grid)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of an ``OasisTransformer``."""
        from vidc.exporters.parts.oasis.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which attention is peaked and frames follow past ones."""
        from vidc.exporters.parts.oasis.random_weights import random_weight

        return random_weight(name, shape, seed)

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Removes the frequencies of rotary embeddings, which training does not change.

        Raises:
            BuildError: ``VIDC-CHECKPOINT-MISMATCH``, they differ from the network's.
        """
        from vidc.exporters.parts.oasis.names import without_frequencies

        return without_frequencies(tensors, self.config)

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists sizes of the preset that a checkpoint contradicts."""
        from vidc.exporters.parts.oasis.names import disagreements

        return disagreements(found, self.config)

    def written_share(self, state: str, signature: "Signature") -> Fraction:
        """Returns the share of a state that a call writes: one frame of a ring, else all of it."""
        return Fraction(1, self.window) if state.startswith("ring.") else Fraction(1)

    @property
    def weights_elements(self) -> int:
        """Elements of the matrices of all blocks."""
        return self.config.layers * (self.layer_weights + 12 * self.config.dim**2)

    @property
    def layer_weights(self) -> int:
        """Elements of a block's matrices that multiply every token."""
        return 2 * (4 + 2 * self.config.mlp) * self.config.dim**2

    @property
    def ring_elements(self) -> int:
        """Elements of all keys and values."""
        return 2 * self.config.layers * self.frame_tokens * self.window * self.config.dim

    def working_elements(self, component: str) -> int:
        """Elements of all keys and values; none for ``condition_frame``."""
        return 0 if component == "condition_frame" else self.ring_elements

    @property
    def playing_elements(self) -> int:
        """Elements of all keys and values, times ``_PLAYED_RINGS``."""
        return _PLAYED_RINGS * self.ring_elements

    def conditions(self, linear: str) -> bool:
        """Returns True for a linear layer that ``condition_frame`` runs."""
        first = linear.partition(".")[0]
        return first in ("external_cond", "t_embedder") or "adaLN_modulation." in linear

    def rows(self, linear: str) -> int:
        """Returns the number of rows that a call multiplies with a linear layer's weight."""
        if linear == "external_cond":
            return 1
        return self.passes if self.conditions(linear) else self.frame_tokens

    @property
    def other_products(self) -> tuple[tuple[int, int], ...]:
        """Weight elements and rows of the patch embedding."""
        return ((self._patch_weights, self.frame_tokens),)

    @property
    def _patch_weights(self) -> int:
        return self.config.dim * self.config.channels * self.config.patch**2

    @property
    def attention_flops(self) -> int:
        """FLOPs of both attentions of a pass, with a full ring."""
        keys = self.frame_tokens + self.window
        return 4 * self.config.layers * self.frame_tokens * keys * self.config.dim

    @property
    def pass_flops(self) -> int:
        """FLOPs of a pass with a full ring, without its modulation."""
        config = self.config
        # The final layer has as many weights as the patch embedding.
        weights = config.layers * self.layer_weights + 2 * self._patch_weights
        return 2 * self.frame_tokens * weights + self.attention_flops

    @property
    def condition_flops(self) -> int:
        """FLOPs of ``condition_frame``."""
        dim = self.config.dim
        embedding = dim * (self.config.freq_dim + dim)
        vectors = self.config.modulations * dim**2
        return 2 * (self.passes * (embedding + vectors) + self.config.actions * dim)
