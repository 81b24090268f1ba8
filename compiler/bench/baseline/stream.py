"""The public code's inference loop, behind the calls of ``vidc.runtime``'s session."""

import torch
from torch import Tensor

from vidc.compiler.bench.baseline.cache import LayerCache, TextCache
from vidc.compiler.bench.baseline.layers import ROTARY_FRAMES
from vidc.compiler.bench.baseline.model import Transformer
from vidc.compiler.bench.baseline.sampler import Sampler
from vidc.compiler.bench.baseline.vae import VaeDecoder
from vidc.exporters.config import ModelConfig
from vidc.plugins.errors import UsageError


class BaselineSession:
    """One stream of the public code.

    Latents are in the transformer's dtype. Made by ``Baseline.session``.
    """

    def __init__(
        self, config: ModelConfig, transformer: Transformer, decoder: VaeDecoder, seed: int
    ) -> None:
        self.blocks = 0
        """Blocks generated so far."""
        self._config = config
        self._transformer = transformer
        self._decoder = decoder
        sizes, stream = config.transformer, config.stream
        self._device = device = transformer.proj_out.weight.device
        self._dtype = dtype = transformer.dtype
        self._sampler = Sampler(config.sampler, device)
        tokens = config.frame_tokens
        shape = (stream.batch, stream.window * tokens, sizes.heads, sizes.head_dim)
        self._caches = [
            LayerCache(shape, stream.sink * tokens, dtype, device) for _ in range(sizes.layers)
        ]
        self._text_caches = [TextCache() for _ in range(sizes.layers)]
        self._memories = [decoder.memory() for _ in range(stream.batch)]
        latents = (stream.batch, stream.window, sizes.channels, *config.latent_size)
        self._history = torch.zeros(latents, dtype=dtype, device=device)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._embeds: Tensor | None = None
        self._frame = 0

    @property
    def latents(self) -> Tensor:
        """Clean latents of the newest block, a copy: ``[B, F, C, h, w]``."""
        return self._history[:, -self._config.stream.block :].clone()

    def prompt(self, embeds: Tensor) -> None:
        """Sets the prompt; its keys and values are computed by the next pass.

        Args:
            embeds: ``[B, L, E]`` of any float dtype.
        """
        self._embeds = embeds.to(self._device, self._dtype)
        for cache in self._text_caches:
            cache.clear()

    @torch.no_grad()
    def switch_prompt(self, embeds: Tensor) -> None:
        """Sets a new prompt between two blocks and recomputes the window's keys and values.

        All frames of the window run through the network, in one pass. Once there are more than
        the window holds, the sink keeps its keys and values; those of its place are dropped. The
        public code also builds an attention mask here, which it never reads; that is left out.
        """
        self.prompt(embeds)
        frames = min(self._config.stream.window, self._frame)
        if frames == 0:
            return
        first = self._frame - frames
        self._remember(self._history[:, -frames:], first, keep_sink=first > 0)
        # The public code drops what this pass computed of the prompt.
        self.prompt(embeds)

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block: ``denoise``, ``remember`` and ``decode``.

        Args:
            noise: as ``denoise`` takes it.

        Returns:
            What ``decode`` returns.
        """
        clean = self.denoise(noise)
        self.remember(clean)
        return self.decode(clean)

    @torch.no_grad()
    def denoise(self, noise: Tensor | None = None) -> Tensor:
        """The next block's clean latent, ``[B, F, C, h, w]``.

        Args:
            noise: ``[steps, B, F, C, h, w]``: the first entry starts the block, each other one
                noises the result of a step for the next. Drawn on the device if left out.

        Raises:
            UsageError: ``VIDC-SESSION-NO-PROMPT``; ``VIDC-BENCH-LENGTH``, the stream has become
                longer than the public code can make it.
        """
        timesteps = self._sampler.timesteps
        if noise is None:
            shape = (len(timesteps), *self._block_shape)
            noise = torch.randn(
                shape, generator=self._generator, device=self._device, dtype=self._dtype
            )
        noise = noise.to(self._device, self._dtype)
        noisy = noise[0]
        for index, step in enumerate(timesteps):
            timestep = torch.ones(noisy.shape[:2], device=self._device, dtype=torch.int64) * step
            clean = self._pass(noisy, timestep, self._frame, keep_sink=False)
            if index + 1 < len(timesteps):
                noisy = self._sampler.noised(clean, noise[index + 1], timesteps[index + 1])
        return clean

    @torch.no_grad()
    def remember(self, latent: Tensor) -> None:
        """Takes a clean latent ``[B, F, C, h, w]`` as the next block of the stream."""
        latent = latent.to(self._dtype)
        self._remember(latent, self._frame, keep_sink=False)
        frames = latent.shape[1]
        self._history = torch.cat([self._history[:, frames:], latent], 1)
        self._frame += frames
        self.blocks += 1

    @torch.no_grad()
    def decode(self, latent: Tensor) -> Tensor:
        """The frames of the next block to be decoded.

        Returns:
            uint8 ``[frames, H, W, 3]``, ``[B, frames, H, W, 3]`` where the batch is larger than 1:
            ``4 F`` frames, ``4 F - 3`` for the first block.
        """
        clips = zip(latent, self._memories, strict=True)
        video = torch.stack([self._decoder(one, memory) for one, memory in clips])
        levels = (video * 0.5 + 0.5).clamp(0, 1).mul_(255).round_().to(torch.uint8)
        frames = levels.permute(0, 2, 3, 4, 1).contiguous()
        return frames[0] if len(frames) == 1 else frames

    @property
    def _block_shape(self) -> tuple[int, ...]:
        config = self._config
        channels = config.transformer.channels
        return (config.stream.batch, config.stream.block, channels, *config.latent_size)

    def _remember(self, latent: Tensor, first_frame: int, keep_sink: bool) -> None:
        """A whole pass over a clean latent, head included: what it leaves in the caches counts."""
        shape, level = latent.shape[:2], self._config.sampler.context_timestep
        timestep = torch.ones(shape, device=self._device) * level
        self._pass(latent, timestep, first_frame, keep_sink)

    def _pass(self, latent: Tensor, timestep: Tensor, first_frame: int, keep_sink: bool) -> Tensor:
        """The clean latent that the network sees in a noisy one, both ``[B, F, C, h, w]``."""
        if self._embeds is None:
            raise UsageError(
                "VIDC-SESSION-NO-PROMPT",
                "the session has no prompt yet",
                "call session.prompt(...) before the first block",
            )
        if first_frame + latent.shape[1] > ROTARY_FRAMES:
            raise UsageError(
                "VIDC-BENCH-LENGTH",
                f"the baseline ends at {ROTARY_FRAMES} latent frames, {self.blocks} blocks were "
                "generated",
                "measure fewer blocks, or leave --against out",
            )
        flow = self._transformer(
            latent, timestep, self._embeds, self._caches, self._text_caches, first_frame, keep_sink
        )
        return self._sampler.clean(flow, latent, timestep)
