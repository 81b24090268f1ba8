"""Components of an Oasis transformer, and their signatures."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.parts.oasis.config import GROUP
from vidc.exporters.parts.oasis.network import Block, OasisTransformer
from vidc.exporters.parts.oasis.part import OasisPart
from vidc.plugins.signature import DTYPE_NAMES, Access, Role, Signature, TensorSpec


class _TransformerComponent(nn.Module):
    """Base of the components, which share the transformer's weights."""

    def __init__(self, transformer: OasisTransformer) -> None:
        super().__init__()
        self.add_module(GROUP, transformer)

    @property
    def transformer(self) -> OasisTransformer:
        """The module that is registered under the name of its group."""
        found = self.get_submodule(GROUP)
        assert isinstance(found, OasisTransformer)
        return found


class ConditionFrame(_TransformerComponent):
    """Component ``condition_frame``: maps an action to the vectors that modulate a frame's passes.

    They depend on timesteps and action alone, and take a third of the weights. So these weights are
    read once a frame, not once a pass.
    """

    def forward(self, timesteps: Tensor, action: Tensor, modulation: Tensor) -> tuple[()]:
        """Writes ``modulation``; arguments as in its signature."""
        modulation.copy_(self.transformer.modulation(timesteps, action))
        return ()


class _Pass(_TransformerComponent):
    """Base of ``denoise`` and ``kv_update``, which pass a frame through the network's blocks."""

    def run(
        self,
        layers: Sequence[Block],
        latent: Tensor,
        vectors: Tensor,
        rope: tuple[Tensor, Tensor],
        position: Tensor,
        valid_length: Tensor,
        rings: Sequence[Tensor],
    ) -> Tensor:
        """Returns a frame's tokens after ``layers``, float32 ``[1, T, dim]``.

        Writes the frame's keys and values into the rings of these layers.

        Args:
            layers: the first blocks of the network.
            latent: latent frame, float32 ``[1, C, h, w]``.
            vectors: modulation of this pass, from ``_pass_modulation``.
            rope: cosines and sines of the frame's index in the stream, each ``[1, D / 2]``.
            position: the frame's index in the stream, int64 ``[1]``.
            valid_length: frames in the rings, this one included, int64 ``[1]``.
            rings: keys and values of each layer in turn, each ``[T, window, H, D]``.
        """
        x: Tensor = self.transformer.x_embedder.proj(latent)
        spatial_rope = self.transformer.spatial_rope(latent.device)
        for index, block in enumerate(layers):
            spatial, temporal = _layer_modulation(vectors, index)
            ring = rings[2 * index : 2 * index + 2]
            x = block.spatial(x, spatial, spatial_rope)
            x = block.temporal(x, temporal, rope, ring, position, valid_length)
        return x


class Denoise(_Pass):
    """Component ``denoise``: predicts the velocity of a noisy latent frame.

    It also writes the frame's keys and values into the rings.
    """

    def forward(
        self,
        latent: Tensor,
        step: Tensor,
        rope_cos: Tensor,
        rope_sin: Tensor,
        position: Tensor,
        valid_length: Tensor,
        modulation: Tensor,
        *rings: Tensor,
    ) -> tuple[Tensor]:
        """Returns the velocity, float32 ``[1, C, h, w]``; arguments as in its signature."""
        vectors = _pass_modulation(modulation, step)
        rope = (rope_cos, rope_sin)
        layers = self.transformer.layers
        x = self.run(layers, latent, vectors, rope, position, valid_length, rings)
        return (self.transformer.velocity(x, vectors[-2:]),)


class KvUpdate(_Pass):
    """Component ``kv_update``: writes keys and values of a clean latent frame into the rings.

    It ends with the keys and values of the last layer: nothing needs the rest of that layer.
    """

    def forward(
        self,
        latent: Tensor,
        step: Tensor,
        rope_cos: Tensor,
        rope_sin: Tensor,
        position: Tensor,
        valid_length: Tensor,
        modulation: Tensor,
        *rings: Tensor,
    ) -> tuple[()]:
        """Writes ``ring.k.i`` and ``ring.v.i``; arguments as in its signature."""
        vectors = _pass_modulation(modulation, step)
        rope = (rope_cos, rope_sin)
        *layers, last = self.transformer.layers
        x = self.run(layers, latent, vectors, rope, position, valid_length, rings)
        spatial, temporal = _layer_modulation(vectors, len(layers))
        x = last.spatial(x, spatial, self.transformer.spatial_rope(latent.device))
        last.t_attn.write(last.temporal_input(x, temporal), rope, rings[-2:], position)
        return ()


def _pass_modulation(modulation: Tensor, step: Tensor) -> Tensor:
    """Returns the vectors of one pass, ``[vectors, 1, 1, dim]``; ``step`` is int64 ``[1]``."""
    return torch.index_select(modulation, 0, step)[0, :, None, None]


def _layer_modulation(vectors: Tensor, index: int) -> tuple[Tensor, Tensor]:
    """Returns the six vectors of a layer's spatial half, and the six of its temporal half."""
    spatial, temporal = vectors[12 * index : 12 * index + 12].split(6)
    return spatial, temporal


def components(part: OasisPart, transformer: nn.Module) -> dict[str, Component]:
    """Returns the components of an ``OasisTransformer`` by name; they share its parameters.

    ``condition_frame`` writes the state ``modulation``, float32 ``[passes, vectors, dim]``;
    ``denoise`` and ``kv_update`` read its row with the index of their input ``step``. Rings are
    ``[T, window, H, D]``: one for each of a frame's ``T`` tokens.
    """
    assert isinstance(transformer, OasisTransformer)
    made = _Signatures(part, DTYPE_NAMES[transformer.dtype])
    return {
        "condition_frame": Component(
            "condition_frame", ConditionFrame(transformer), made.condition_frame()
        ),
        "denoise": Component("denoise", Denoise(transformer), made.denoise(), aligned=True),
        "kv_update": Component("kv_update", KvUpdate(transformer), made.kv_update(), aligned=True),
    }


class _Signatures:
    def __init__(self, part: OasisPart, dtype: str) -> None:
        self.part = part
        self.dtype = dtype
        self.latent = (1, part.config.channels, *part.latent)

    def condition_frame(self) -> Signature:
        action = _input("action", (1, self.part.config.actions))
        timesteps = _input("timesteps", (self.part.passes,))
        return Signature((timesteps, action, self._modulation(Access.WRITE)))

    def denoise(self) -> Signature:
        velocity = TensorSpec("velocity", self.latent, "float32", Role.OUTPUT)
        return Signature((*self._pass(), velocity))

    def kv_update(self) -> Signature:
        return Signature(self._pass())

    def _pass(self) -> tuple[TensorSpec, ...]:
        config = self.part.config
        angles = (1, config.head_dim // 2)
        ring = (self.part.frame_tokens, self.part.window, config.heads, config.head_dim)
        return (
            _input("latent", self.latent),
            _input("step", (1,), "int64"),
            _input("rope_cos", angles),
            _input("rope_sin", angles),
            _input("position", (1,), "int64"),
            _input("valid_length", (1,), "int64"),
            self._modulation(Access.READ),
            *(
                TensorSpec(f"ring.{of}.{layer}", ring, self.dtype, Role.STATE, Access.READ_WRITE)
                for layer in range(config.layers)
                for of in ("k", "v")
            ),
        )

    def _modulation(self, access: Access) -> TensorSpec:
        config = self.part.config
        shape = (self.part.passes, config.modulations, config.dim)
        return TensorSpec("modulation", shape, "float32", Role.STATE, access)


def _input(name: str, shape: tuple[int, ...], dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name, shape, dtype, Role.INPUT)
