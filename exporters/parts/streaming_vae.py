"""Base class of autoencoders that encode and decode a stream block by block."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vidc.exporters.part import Part

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from vidc.exporters.component import Component
    from vidc.plugins.signature import TensorSpec

TEMPORAL_STRIDE = 4
"""Video frames of a latent frame; the first latent frame of a clip has a single video frame."""

MakeModule = Callable[[bool], "nn.Module"]
"""Makes the module of a clip's first block, or of later ones."""


@dataclass(frozen=True)
class StreamingVae(Part):
    """An autoencoder of videos, block by block.

    With F latent frames in a block, ``<group>_decode_first`` decodes the first block of a clip to
    4F - 3 video frames and ``<group>_decode`` every later block to 4F. ``<group>_encode_first`` and
    ``<group>_encode`` do the reverse.

    Attributes:
        batch: videos side by side.
        block: latent frames of a call.
        height: of a video frame, in pixels.
        width: of a video frame, in pixels.
    """

    batch: int
    block: int
    height: int
    width: int

    @property
    @abstractmethod
    def channels(self) -> int:
        """Channels of a latent."""

    @property
    @abstractmethod
    def spatial_stride(self) -> int:
        """Pixels to a latent, in height and in width."""

    @abstractmethod
    def block_flops(self) -> float:
        """Estimates the FLOPs of decoding one block."""

    @property
    def latent_shape(self) -> tuple[int, ...]:
        """Shape of a block's latents, ``[B, F, C, h, w]``."""
        size = (self.height // self.spatial_stride, self.width // self.spatial_stride)
        return (self.batch, self.block, self.channels, *size)

    def frames_shape(self, first: bool) -> tuple[int, ...]:
        """Shape of a block's video frames, ``[B, 4F, 3, H, W]``; 4F - 3 of a clip's first."""
        frames = TEMPORAL_STRIDE * self.block - (TEMPORAL_STRIDE - 1 if first else 0)
        return (self.batch, frames, 3, self.height, self.width)

    @property
    def pixels(self) -> int:
        """Pixels of a block after the first, of all videos."""
        return self.batch * TEMPORAL_STRIDE * self.block * self.height * self.width

    def encoded_shape(self, first: bool) -> tuple[int, ...]:
        """Shape of the video frames that the encoder takes; by default those of the block."""
        return self.frames_shape(first)

    @property
    def component_names(self) -> tuple[str, ...]:
        """Decoder and encoder, each for a clip's first block and for later ones."""
        return tuple(
            f"{self.group}_{direction}{suffix}"
            for direction in ("decode", "encode")
            for suffix in ("_first", "")
        )

    def streaming_components(
        self,
        decode: MakeModule,
        encode: MakeModule,
        decoder_states: "Sequence[Tensor]",
        encoder_states: "Sequence[Tensor]",
        dtype: "torch.dtype",
    ) -> "dict[str, Component]":
        """Returns the components by name.

        Both decoders share the states ``<group>.decoder.cache.<i>``, both encoders
        ``<group>.encoder.cache.<i>``. The component for the first block overwrites them.

        Args:
            decode: makes a module that maps latents and states to frames from -1 to 1.
            encode: makes a module that maps frames and states to latents.
            decoder_states: meta tensors of the states' shapes.
            encoder_states: the same for the encoder.
            dtype: of the states.
        """
        from vidc.exporters.component import Component
        from vidc.plugins.signature import Role, Signature, TensorSpec

        found = {}
        for suffix, first in (("_first", True), ("", False)):
            latent = TensorSpec("latent", self.latent_shape, "float32", Role.INPUT)
            frames = TensorSpec("frames", self.frames_shape(first), "float32", Role.OUTPUT)
            states = self._states("decoder", decoder_states, dtype, first)
            name = f"{self.group}_decode{suffix}"
            found[name] = Component(name, decode(first), Signature((latent, *states, frames)))
            frames = TensorSpec("frames", self.encoded_shape(first), "float32", Role.INPUT)
            latent = TensorSpec("latent", self.latent_shape, "float32", Role.OUTPUT)
            states = self._states("encoder", encoder_states, dtype, first)
            name = f"{self.group}_encode{suffix}"
            found[name] = Component(name, encode(first), Signature((frames, *states, latent)))
        return found

    def _states(
        self, network: str, states: "Sequence[Tensor]", dtype: "torch.dtype", first: bool
    ) -> "list[TensorSpec]":
        from vidc.plugins.signature import DTYPE_NAMES, Access, Role, TensorSpec

        access = Access.WRITE if first else Access.READ_WRITE
        return [
            TensorSpec(
                f"{self.group}.{network}.cache.{i}", tuple(state.shape), DTYPE_NAMES[dtype],
                Role.STATE, access,
            )
            for i, state in enumerate(states)
        ]  # fmt: skip
