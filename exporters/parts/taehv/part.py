"""Part ``taehv``: a tiny autoencoder of videos, block by block."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vidc.exporters.parts.streaming_vae import StreamingVae
from vidc.exporters.parts.taehv.config import COLORS, GROUP, STAGES, TaehvConfig

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vidc.exporters.checkpoint.layout import Layout
    from vidc.exporters.checkpoint.lazy import LazyTensor
    from vidc.exporters.component import Component

_ACTIVATIONS = 4
"""Activations at full resolution that decoding holds at once."""


def _last_frames(tensor: "LazyTensor", shape: tuple[int, ...] | None) -> "LazyTensor":
    """Keeps the last rows of a 1 x 1 convolution's weight if it makes more frames than needed."""
    from vidc.exporters.checkpoint.lazy import LazyTensor

    if shape is None or shape[2:] != (1, 1) or tensor.shape[1:] != shape[1:]:
        return tensor
    rows = shape[0]
    if tensor.shape[0] == rows or tensor.shape[0] % rows:
        return tensor
    return LazyTensor(shape, tensor.dtype, lambda: tensor.load()[-rows:])


@dataclass(frozen=True)
class TaehvPart(StreamingVae):
    """A TAEHV, block by block.

    Latent frame k becomes video frames 4k - 3 to 4k. The encoder makes it of frames 4k to 4k + 3
    and of its memories, so it looks three frames ahead and takes 4F frames from the first block
    on. At the end of a clip of 4N - 3 frames, the last frame is repeated three times.
    """

    group: ClassVar[str] = GROUP
    instead_of_bf16: ClassVar[str] = "fp16"
    config: TaehvConfig

    @property
    def channels(self) -> int:
        """Channels of a latent."""
        return self.config.latent_channels

    @property
    def spatial_stride(self) -> int:
        """Pixels to a latent."""
        return self.config.spatial_stride

    def encoded_shape(self, first: bool) -> tuple[int, ...]:
        """Shape of the frames that the encoder takes: 4F for every block, also for the first."""
        return self.frames_shape(first=False)

    def module(self) -> "nn.Module":
        """Returns a ``Taehv``."""
        from vidc.exporters.parts.taehv.network import Taehv

        return Taehv(self.config)

    def components(self, network: "nn.Module") -> "dict[str, Component]":
        """Returns the components of a ``Taehv``."""
        from vidc.exporters.parts.taehv.components import components

        return components(self, network)

    def random_weight(self, name: str, shape: tuple[int, ...], seed: int) -> "Tensor":
        """Draws weights under which decoded noise fills the range of pixels."""
        from vidc.exporters.parts.taehv.random_weights import random_weight

        return random_weight(name, shape, seed)

    def adapt(self, tensors: "dict[str, LazyTensor]", layout: "Layout") -> "dict[str, LazyTensor]":
        """Keeps the weights of the last frames where a layer makes more than this decoder uses."""
        shapes = self.shapes()
        return {name: _last_frames(tensor, shapes.get(name)) for name, tensor in tensors.items()}

    def disagreements(
        self, found: Mapping[str, Sequence[int]], expected: Mapping[str, Sequence[int]]
    ) -> list[str]:
        """Lists settings of ``[taehv]`` that a checkpoint's shapes contradict."""
        first, last = "decoder.1.weight", "decoder.22.weight"
        if first not in found or last not in found:
            return []
        sizes = self.config
        latent_channels, patch = found[first][1], round((found[last][0] / COLORS) ** 0.5)
        return [
            f"taehv.{name} = {value}, not {own}"
            for name, value, own in (
                ("latent_channels", latent_channels, sizes.latent_channels),
                ("patch", patch, sizes.patch),
            )
            if value != own
        ]

    @property
    def playing_elements(self) -> int:
        """Elements of activations at full resolution and the last layers' width."""
        widest = max(self.config.widths[STAGES - 1 :])
        return _ACTIVATIONS * self.pixels // self.config.patch**2 * widest

    def block_flops(self) -> float:
        """Counts the convolutions of 3 x 3 pixels that decode one block, two to a multiply-add."""
        *_, height, width = self.latent_shape
        widths, sizes, total = self.config.widths, self.config, 0
        for stage, frames in enumerate((1, 1, 2)):
            pixels = frames * height * width * 4**stage
            # Three blocks of three convolutions, the first of them over two frames.
            total += pixels * 12 * widths[stage] ** 2
            grown = (2 if stage else 1) * 4 * pixels
            total += grown * widths[stage] * widths[stage + 1]
        total += height * width * sizes.latent_channels * widths[0]
        total += grown * widths[STAGES] * sizes.pixel_channels
        return float(2 * 9 * self.batch * self.block * total)
