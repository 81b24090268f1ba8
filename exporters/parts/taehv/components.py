"""Components of a TAEHV: decoder and encoder, with the memories of their blocks as states."""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vidc.exporters.component import Component
from vidc.exporters.parts.streaming_vae import TEMPORAL_STRIDE
from vidc.exporters.parts.taehv.config import STAGES, TaehvConfig
from vidc.exporters.parts.taehv.network import MEMORY_BLOCKS, Taehv, run
from vidc.exporters.parts.taehv.part import TaehvPart


class _Streaming(nn.Module):
    """One direction of a TAEHV, under the names that its weights have.

    Args:
        config: sizes of the network.
        network: its modules are shared, not copied.
        name: ``encoder`` or ``decoder``.
        first: True for a clip's first block, before which every memory is zero.
    """

    def __init__(self, config: TaehvConfig, network: nn.Module, name: str, first: bool) -> None:
        super().__init__()
        self.taehv = nn.ModuleDict({name: network.get_submodule(name)})
        self.config = config
        self.first = first
        self.dtype = next(network.parameters()).dtype

    def run(self, x: Tensor, memories: tuple[Tensor, ...]) -> Tensor:
        """Runs the network over frames ``[B, T, C, h, w]`` and updates its memories."""
        (layers,) = self.taehv.values()
        before = [None if self.first else memory for memory in memories]
        result, *after = run(layers.children(), x, before)
        for memory, frame in zip(memories, after, strict=True):
            memory.copy_(frame)
        return result


class TaehvDecode(_Streaming):
    """Latents to video frames."""

    def forward(self, latent: Tensor, *memories: Tensor) -> tuple[Tensor]:
        """Decodes one block and leaves in ``memories`` what the next one needs.

        Args:
            latent: float32 ``[B, F, C, h, w]``, normalized as the transformer uses it.
            memories: ``[B, channels, height, width]`` each, written in place.

        Returns:
            frames: float32 ``[B, 4F, 3, H, W]``, 4F - 3 frames for the first block, in [-1, 1].
        """
        limited = 3 * torch.tanh(latent / 3)
        pixels = self.run(limited.to(self.dtype), memories)
        if self.first:
            pixels = pixels[:, TEMPORAL_STRIDE - 1 :]
        if self.config.patch > 1:
            pixels = F.pixel_shuffle(pixels, self.config.patch)
        # The network's pixels lie between 0 and 1.
        return ((pixels.float().clamp(0.0, 1.0) * 2 - 1).contiguous(),)


class TaehvEncode(_Streaming):
    """Video frames to latents."""

    def forward(self, frames: Tensor, *memories: Tensor) -> tuple[Tensor]:
        """Encodes one block and leaves in ``memories`` what the next one needs.

        Args:
            frames: float32 ``[B, 4F, 3, H, W]`` in [-1, 1].
            memories: ``[B, channels, height, width]`` each, written in place.

        Returns:
            latent: float32 ``[B, F, C, h, w]``, normalized as the transformer uses it.
        """
        pixels = ((frames + 1) / 2).to(self.dtype)
        if self.config.patch > 1:
            pixels = F.pixel_unshuffle(pixels, self.config.patch)
        return (self.run(pixels, memories).float().contiguous(),)


def components(part: TaehvPart, network: nn.Module) -> dict[str, Component]:
    """Returns the components of a ``Taehv``; they share its parameters."""
    assert isinstance(network, Taehv)
    config, dtype = part.config, next(network.parameters()).dtype
    decoder, encoder = _memories(part)
    return part.streaming_components(
        partial(TaehvDecode, config, network, "decoder"),
        partial(TaehvEncode, config, network, "encoder"),
        decoder,
        encoder,
        dtype,
    )


def _memories(part: TaehvPart) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the memories of decoder and encoder between blocks, as meta tensors."""
    config, (height, width) = part.config, part.latent_shape[-2:]

    def memory(channels: int, stage: int) -> Tensor:
        shape = (part.batch, channels, 2**stage * height, 2**stage * width)
        return torch.empty(shape, device="meta")

    blocks = [stage for stage in range(STAGES) for _ in range(MEMORY_BLOCKS)]
    decoder = [memory(config.widths[stage], stage) for stage in blocks]
    encoder = [memory(config.encoder_width, stage) for stage in reversed(blocks)]
    return decoder, encoder
