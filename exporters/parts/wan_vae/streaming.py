"""The Wan VAE block by block, with the memory of its causal convolutions as explicit states.

A causal convolution needs the last input frames of the previous block. diffusers stores them in a
Python list that the network fills while it runs. Here the list is filled from state tensors before
a call and copied back to them after it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vidc.exporters.parts.wan_vae.chunks import decode_in_chunks
from vidc.exporters.parts.wan_vae.config import VaeConfig


class _Streaming(nn.Module):
    """The parts of a VAE that one direction needs, under the names that its weights have.

    Args:
        config: sizes and statistics of the VAE.
        vae: diffusers' ``AutoencoderKLWan``; its modules are shared, not copied.
        dtype: the dtype of its parameters, in which the network computes.
        first: True for a clip's first block, before which every cache is empty.
    """

    parts: ClassVar[tuple[str, str]]

    def __init__(self, config: VaeConfig, vae: nn.Module, dtype: torch.dtype, first: bool) -> None:
        super().__init__()
        self.vae = nn.ModuleDict({name: vae.get_submodule(name) for name in self.parts})
        self.config = config
        self.dtype = dtype
        self.first = first

    def statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the latents, float32 [C, 1, 1]."""
        # Made on the CPU: on the meta device they would lose their values when traced.
        mean = torch.tensor(self.config.latents_mean, device="cpu").view(-1, 1, 1)
        std = torch.tensor(self.config.latents_std, device="cpu").view(-1, 1, 1)
        return mean.to(device), std.to(device)


class VaeDecode(_Streaming):
    """Latents to video frames.

    Args:
        chunk: video frames that the layers at full resolution take at once; None for all.
    """

    parts = ("post_quant_conv", "decoder")

    def __init__(
        self,
        config: VaeConfig,
        vae: nn.Module,
        dtype: torch.dtype,
        first: bool,
        chunk: int | None = None,
    ) -> None:
        super().__init__(config, vae, dtype, first)
        self.chunk = chunk

    def forward(self, latent: Tensor, *caches: Tensor) -> tuple[Tensor]:
        """Decodes one block and leaves what the next one needs in ``caches``.

        Args:
            latent: float32 [B, F, C, h, w], normalized as the transformer uses it.
            caches: what ``remembered`` gives for the decoder; written in place.

        Returns:
            frames: float32 [B, 4F, 3, 8h, 8w], 4F - 3 frames for the first block, in [-1, 1].
        """
        mean, std = self.statistics(latent.device)
        z = (latent * std + mean).to(self.dtype).transpose(1, 2)
        z = self.vae["post_quant_conv"](z)
        decoder = self.vae["decoder"]
        decode = decoder if self.chunk is None else partial(decode_in_chunks, decoder, self.chunk)
        frames = _stream(decode, z, caches, self.first)
        return (frames.float().clamp(-1.0, 1.0).transpose(1, 2).contiguous(),)


class VaeEncode(_Streaming):
    """Video frames to latents."""

    parts = ("encoder", "quant_conv")

    def forward(self, frames: Tensor, *caches: Tensor) -> tuple[Tensor]:
        """Encodes one block and leaves what the next one needs in ``caches``.

        Args:
            frames: float32 [B, 4F, 3, H, W], 4F - 3 frames for the first block, in [-1, 1].
            caches: what ``remembered`` gives for the encoder; written in place.

        Returns:
            latent: float32 [B, F, C, H / 8, W / 8], the mean of the posterior, normalized as the
                transformer uses it.
        """
        x = frames.to(self.dtype).transpose(1, 2)
        moments = self.vae["quant_conv"](_stream(self.vae["encoder"], x, caches, self.first))
        posterior_mean = moments[:, : self.config.z_dim].float().transpose(1, 2)
        mean, std = self.statistics(frames.device)
        return (((posterior_mean - mean) / std).contiguous(),)


def remembered(network: nn.Module, first: Tensor, later: Tensor) -> tuple[Tensor, ...]:
    """The caches of an encoder or decoder, in the order in which its convolutions run.

    Args:
        network: on the meta device, so that nothing is computed.
        first: meta [B, C, 1, height, width], the first frame of a clip.
        later: meta [B, C, T, height, width], the frames of a later latent frame.

    Returns:
        Meta tensors [B, channels, 2, height, width], one frame where time is downsampled.
    """
    memory: list[Any] = [None] * sum(1 for _ in network.modules())
    # Two chunks, because the first leaves some entries short and others unset.
    for chunk in (first, later):
        used = [0]
        network(chunk, feat_cache=memory, feat_idx=used)
    return tuple(memory[: used[0]])


def _stream(
    network: Callable[..., Tensor], x: Tensor, caches: Sequence[Tensor], first: bool
) -> Tensor:
    """Runs ``network`` over x [B, C, T, height, width] with its memory in ``caches``."""
    memory: list[Any] = [None] * len(caches) if first else list(caches)
    # A clip's first frame skips the resampling in time, so it goes alone.
    chunks = x.tensor_split([1], dim=2) if first and x.shape[2] > 1 else (x,)
    outputs = []
    for chunk in chunks:
        outputs.append(network(chunk, feat_cache=memory, feat_idx=[0]))
        memory = [_whole(value, cache) for value, cache in zip(memory, caches, strict=True)]
    for cache, value in zip(caches, memory, strict=True):
        cache.copy_(value)
    return torch.cat(outputs, dim=2) if len(outputs) > 1 else outputs[0]


def _whole(value: Tensor | str, cache: Tensor) -> Tensor:
    """Returns the cache of a convolution after a block.

    Zeros in front replace frames that the convolution's memory lacks. diffusers' marker ``"Rep"``
    stands for a memory without frames.
    """
    if isinstance(value, str):
        return torch.zeros(cache.shape, dtype=cache.dtype, device=cache.device)
    missing = cache.shape[2] - value.shape[2]
    return functional.pad(value, (0, 0, 0, 0, missing, 0)) if missing else value
