"""A session: one live stream over the engines of a bundle."""

from collections.abc import Iterator, Mapping
from threading import Lock

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError
from vidc.runtime.engines import Engine
from vidc.runtime.noise import block_noise
from vidc.runtime.rope import Rope
from vidc.runtime.states import Buffers, States
from vidc.runtime.stream import StreamSpec
from vidc.runtime.text import TextEncoder


class Session:
    """One stream: its own states, the bundle's engines and weights.

    Made by ``Bundle.session``. Prompts and frames: see ``prompt``, ``step`` and ``stream``.
    """

    def __init__(
        self,
        stream: StreamSpec,
        engines: Mapping[str, Engine],
        device: torch.device,
        lock: Lock,
        text_encoder: TextEncoder | None,
        seed: int,
    ) -> None:
        self.stream_spec = stream
        self.seed = seed
        self.blocks = 0
        """Blocks generated so far."""
        self._engines = engines
        self._device = device
        self._lock = lock
        self._text_encoder = text_encoder
        self._rope = Rope(stream)
        self._states = States((engine.signature for engine in engines.values()), device)
        self._buffers = {
            name: Buffers(engine.signature, device) for name, engine in engines.items()
        }
        history = (stream.batch, stream.window, *stream.latent)
        self._history = torch.zeros(history, device=device)
        self._frame = 0
        self._prompted = False
        self._decoding = False

    @property
    def latents(self) -> Tensor:
        """Clean latents of the newest block, a copy: float32 ``[B, F, C, h, w]`` on the device."""
        return self._history[:, -self.stream_spec.block :].clone()

    def embeds(self, prompt: Tensor | str) -> Tensor:
        """The embeddings ``[B, L, E]`` of a prompt, for ``prompt`` or ``switch_prompt`` to take.

        Args:
            prompt: as in ``prompt``; embeddings are checked and come back.

        Raises:
            UsageError: ``VIDC-PROMPT-SHAPE``, ``VIDC-PROMPT-NO-ENCODER``.
        """
        shape = (self.stream_spec.batch, *self.stream_spec.text)
        if isinstance(prompt, str):
            if self._text_encoder is None:
                raise UsageError(
                    "VIDC-PROMPT-NO-ENCODER",
                    "the bundle has no text encoder, so it cannot take a prompt as text",
                    "pass text embeddings (--prompt-embeds FILE), or build with --text-encoder",
                )
            with self._lock:
                return self._text_encoder(prompt).expand(shape).clone()
        if tuple(prompt.shape) != shape or not prompt.is_floating_point():
            raise UsageError(
                "VIDC-PROMPT-SHAPE",
                f"text embeddings are {prompt.dtype}{list(prompt.shape)}, "
                f"expected floating point {list(shape)}",
                "pad the prompt's embeddings with zeros to the bundle's text length",
            )
        return prompt

    def prompt(self, prompt: Tensor | str) -> None:
        """Sets the prompt the stream starts with.

        Args:
            prompt: text embeddings ``[B, L, E]`` of any float dtype, or a text where the bundle
                has a text encoder.

        Raises:
            UsageError: ``VIDC-PROMPT-SHAPE``, ``VIDC-PROMPT-NO-ENCODER``.
        """
        embeds = self.embeds(prompt)
        with self._lock:
            self._buffers["text_kv"].set({"text_embeds": embeds})
            self._run("text_kv")
        self._prompted = True

    def switch_prompt(self, prompt: Tensor | str) -> None:
        """Sets a new prompt and recomputes the window's keys and values under it.

        The sink stays, unless the stream is no longer than the window: then all is recomputed.
        """
        self.prompt(prompt)
        spec, end = self.stream_spec, self._frame
        if end == 0:
            return
        frames = spec.recached(end)
        name = "kv_update" if frames == spec.block else f"recache_{frames}"
        with self._lock:
            self._write_keys_values(name, self._history[:, -frames:], end - frames, end)

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block.

        Args:
            noise: ``[steps, B, F, C, h, w]``: the first entry starts the block, each other one
                noises the result of a step for the next. Drawn from the seed if left out.

        Returns:
            uint8 ``[frames, H, W, 3]`` on the device, ``[B, frames, H, W, 3]`` where the batch
            is larger than 1: ``4 F`` frames, ``4 F - 3`` for the first block.

        Raises:
            UsageError: ``VIDC-SESSION-NO-PROMPT``, ``VIDC-SESSION-NOISE``.
        """
        clean = self.denoise(noise)
        self.remember(clean)
        return self.decode(clean)

    def denoise(self, noise: Tensor | None = None) -> Tensor:
        """The next block's clean latent, float32 ``[B, F, C, h, w]``; ``noise`` as in ``step``.

        The stream does not move on until ``remember`` is given a latent.
        """
        if not self._prompted:
            raise UsageError(
                "VIDC-SESSION-NO-PROMPT",
                "the session has no prompt yet",
                "call session.prompt(...) before the first block",
            )
        noise = self._noise(noise)
        spec, buffers = self.stream_spec, self._buffers["denoise"]
        with self._lock:
            self._place("denoise", self._frame, self._frame + spec.block)
            latent, flow = buffers["latent"], buffers["flow"]
            latent.copy_(noise[0])
            for index, (time, sigma) in enumerate(zip(spec.timesteps, spec.sigmas, strict=True)):
                buffers.set({"timestep": time})
                self._run("denoise")
                # x_t = (1 - sigma) x_0 + sigma noise and flow = noise - x_0.
                latent.sub_(flow, alpha=sigma)
                if index + 1 < len(spec.sigmas):
                    latent.lerp_(noise[index + 1], spec.sigmas[index + 1])
            return latent.clone()

    def remember(self, latent: Tensor) -> None:
        """Takes a clean latent ``[B, F, C, h, w]`` as the next block of the stream."""
        spec = self.stream_spec
        end = self._frame + spec.block
        with self._lock:
            self._write_keys_values("kv_update", latent, self._frame, end)
        self._history.copy_(torch.cat([self._history, latent], 1)[:, spec.block :])
        self._frame = end
        self.blocks += 1

    def decode(self, latent: Tensor) -> Tensor:
        """The frames of the next block to be decoded, as ``step`` returns them."""
        name = "vae_decode" if self._decoding else "vae_decode_first"
        with self._lock:
            self._buffers[name].set({"latent": latent})
            self._run(name)
            pixels = self._buffers[name]["frames"].permute(0, 1, 3, 4, 2)
            levels = pixels.add(1).mul_(127.5).round_().clamp_(0, 255)
            frames = levels.to(torch.uint8, memory_format=torch.contiguous_format)
        self._decoding = True
        return frames[0] if self.stream_spec.batch == 1 else frames

    def stream(self, blocks: int) -> Iterator[Tensor]:
        """The frames of the next ``blocks`` blocks, block by block, as ``step`` returns them."""
        for _ in range(blocks):
            yield self.step()

    def _write_keys_values(self, name: str, latent: Tensor, first: int, end: int) -> None:
        self._place(name, first, end)
        self._buffers[name].set({"latent": latent, "timestep": self.stream_spec.context_timestep})
        self._run(name)

    def _place(self, name: str, first: int, end: int) -> None:
        """Sets what depends on the position: frames from ``first``, the newest being ``end``."""
        spec, buffers = self.stream_spec, self._buffers[name]
        self._rope.fill(buffers["rope_cos"], buffers["rope_sin"], first)
        buffers.set(
            {
                "position": first * spec.frame_tokens,
                "valid_length": min(end, spec.window) * spec.frame_tokens,
            }
        )

    def _run(self, name: str) -> None:
        self._engines[name].run(self._buffers[name], self._states)

    def _noise(self, noise: Tensor | None) -> Tensor:
        spec = self.stream_spec
        shape = (spec.batch, spec.block, *spec.latent)
        if noise is None:
            drawn = block_noise(self.seed, self.blocks, len(spec.sigmas), shape)
            return drawn.to(self._device)
        if tuple(noise.shape) != (len(spec.sigmas), *shape):
            raise UsageError(
                "VIDC-SESSION-NOISE",
                f"noise is {list(noise.shape)}, expected {[len(spec.sigmas), *shape]}",
                "give one entry a denoising step: [steps, batch, frames, channels, h, w]",
            )
        return noise.to(self._device, torch.float32)
