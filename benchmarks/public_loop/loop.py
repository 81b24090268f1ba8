"""The public code's inference loop, behind the calls of ``vidc.runtime``'s session."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from public_loop.cache import LayerCache, TextCache
from public_loop.decoder import Decoder
from public_loop.layers import ROTARY_FRAMES, Transformer
from vidc.exporters.families.causal_video import TRAINING_STEPS, CausalVideo, SamplerConfig
from vidc.exporters.models import with_weights
from vidc.exporters.parts.causal_wan.network import CausalWan
from vidc.exporters.parts.wan_vae.network import create
from vidc.runtime.manifest import read_manifest


class PublicLoop:
    """The public code's networks on one set of weights.

    Args:
        config: of the model.
        transformer: weights by diffusers' names, all on one device and of one float dtype.
        vae: likewise.
        backend: of ``torch.compile``, None to run eagerly. Every layer of the transformer and the
            VAE's decoder are compiled for themselves, when they first run.
    """

    def __init__(
        self,
        config: CausalVideo,
        transformer: dict[str, Tensor],
        vae: dict[str, Tensor],
        backend: str | None = None,
    ) -> None:
        self.config = config
        network = with_weights(config.transformer_part.network("fp32"), transformer)
        assert isinstance(network, CausalWan)
        self.transformer = Transformer(network, backend)
        autoencoder = with_weights(create(config.vae, torch.float32, "meta"), vae)
        self.decoder = Decoder(config.vae, autoencoder, backend)

    def session(self, seed: int = 0) -> "PublicStream":
        """Opens a stream."""
        return PublicStream(self, seed)


def of_bundle(
    config: CausalVideo, bundle: Path, device: torch.device, backends: dict[str, str | None]
) -> dict[str, PublicLoop]:
    """The loop of a model under each backend, on one more copy of a bundle's weights."""
    files = read_manifest(bundle).weights
    transformer, vae = (
        load_file(bundle / files[group].path, str(device)) for group in ("transformer", "vae")
    )
    return {name: PublicLoop(config, transformer, vae, each) for name, each in backends.items()}


class PublicStream:
    """One stream; its latents are in the transformer's dtype."""

    def __init__(self, loop: PublicLoop, seed: int) -> None:
        self._transformer, self._decoder = loop.transformer, loop.decoder
        self._config = config = loop.config
        self._device, self._dtype = device, dtype = loop.transformer.device, loop.transformer.dtype
        self._sampler = _Sampler(config.sampler, device)
        sizes, stream, tokens = config.transformer, config.stream, config.frame_tokens
        shape = (stream.batch, stream.window * tokens, sizes.heads, sizes.head_dim)
        self._caches = [
            LayerCache(torch.zeros(shape, dtype=dtype, device=device), stream.sink * tokens)
            for _ in range(sizes.layers)
        ]
        self._text_caches: list[TextCache] = [{} for _ in range(sizes.layers)]
        self._memories = [loop.decoder.memory() for _ in range(stream.batch)]
        frame = (sizes.channels, *config.latent_size)
        self._block = (len(config.sampler.steps), stream.batch, stream.block, *frame)
        window = (stream.batch, stream.window, *frame)
        self._history = torch.zeros(window, dtype=dtype, device=device)
        self._generator = torch.Generator(device).manual_seed(seed)
        self._embeds: Tensor | None = None
        self._frame = 0

    def prompt(self, embeds: Tensor) -> None:
        """Sets the prompt ``[B, L, E]``; the next pass computes its keys and values."""
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
        """Generates the next block; returns the frames as ``decode`` does."""
        return self.decode(self.generate(noise))

    @torch.no_grad()
    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block: its clean latent ``[B, F, C, h, w]``.

        ``noise`` is ``[steps, B, F, C, h, w]``, drawn on the device if left out.
        """
        timesteps = self._sampler.timesteps
        if noise is None:
            noise = torch.randn(
                self._block, generator=self._generator, device=self._device, dtype=self._dtype
            )
        noise = noise.to(self._device, self._dtype)
        noisy = noise[0]
        for index, step in enumerate(timesteps):
            timestep = torch.ones(noisy.shape[:2], device=self._device, dtype=torch.int64) * step
            clean = self._pass(noisy, timestep, self._frame, keep_sink=False)
            if index + 1 < len(timesteps):
                noisy = self._sampler.noised(clean, noise[index + 1], timesteps[index + 1])
        self._remember(clean, self._frame, keep_sink=False)
        frames = clean.shape[1]
        self._history = torch.cat([self._history[:, frames:], clean], 1)
        self._frame += frames
        return clean

    def flush(self) -> None:
        """Does nothing: here a block ends with its clean pass."""

    @torch.no_grad()
    def decode(self, latent: Tensor) -> Tensor:
        """The frames of the next block to be decoded, as ``vidc.runtime.Session`` returns them."""
        clips = zip(latent, self._memories, strict=True)
        video = torch.stack([self._decoder(one, memory) for one, memory in clips])
        levels = (video * 0.5 + 0.5).clamp(0, 1).mul_(255).round_().to(torch.uint8)
        frames = levels.permute(0, 2, 3, 4, 1).contiguous()
        return frames[0] if len(frames) == 1 else frames

    def _remember(self, latent: Tensor, first_frame: int, keep_sink: bool) -> None:
        """Runs a whole pass over a clean latent, head included, for its keys and values."""
        level = self._config.sampler.context_timestep
        timestep = torch.ones(latent.shape[:2], device=self._device) * level
        self._pass(latent, timestep, first_frame, keep_sink)

    def _pass(self, latent: Tensor, timestep: Tensor, first_frame: int, keep_sink: bool) -> Tensor:
        """The clean latent that the network sees in a noisy one, both ``[B, F, C, h, w]``."""
        if self._embeds is None or first_frame + latent.shape[1] > ROTARY_FRAMES:
            raise ValueError(f"a stream needs a prompt and ends at {ROTARY_FRAMES} latent frames")
        flow = self._transformer(
            latent, timestep, self._embeds, self._caches, self._text_caches, first_frame, keep_sink
        )
        return self._sampler.clean(flow, latent, timestep)


class _Sampler:
    """Flow matching with a table of noise levels, looked up by the nearest timestep.

    ``timesteps`` are those of the denoising steps, float32 on the CPU, from noise to clean.
    """

    def __init__(self, config: SamplerConfig, device: torch.device) -> None:
        even = torch.linspace(1.0, 0.0, TRAINING_STEPS + 1)[:-1]
        sigmas = config.shift * even / (1 + (config.shift - 1) * even)
        levels = sigmas * TRAINING_STEPS
        self.timesteps = levels[TRAINING_STEPS - torch.tensor(config.steps)]
        self._sigmas = sigmas.to(device)
        self._levels = levels.to(device)

    def clean(self, flow: Tensor, noisy: Tensor, timestep: Tensor) -> Tensor:
        """``x_t - sigma flow`` in float64, for ``[B, F, C, h, w]`` at timesteps ``[B, F]``."""
        sigma = _nearest(self._sigmas.double(), self._levels.double(), timestep.flatten())
        clean = noisy.flatten(0, 1).double() - sigma * flow.flatten(0, 1).double()
        return clean.to(flow.dtype).view(flow.shape)

    def noised(self, clean: Tensor, noise: Tensor, timestep: Tensor) -> Tensor:
        """``(1 - sigma) x_0 + sigma noise`` at one of ``timesteps``."""
        flat = clean.flatten(0, 1)
        steps = timestep * torch.ones(len(flat), device=clean.device, dtype=torch.long)
        sigma = _nearest(self._sigmas, self._levels, steps)
        noisy = (1 - sigma) * flat + sigma * noise.flatten(0, 1)
        return noisy.type_as(noise).view(clean.shape)


def _nearest(sigmas: Tensor, levels: Tensor, timesteps: Tensor) -> Tensor:
    index = torch.argmin((levels[None] - timesteps[:, None]).abs(), dim=1)
    return sigmas[index].reshape(-1, 1, 1, 1)
