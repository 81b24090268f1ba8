"""Program ``causal_video``: a video stream in blocks over a KV ring, with prompt switches."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError
from vidc.plugins.names import TOKENIZER
from vidc.runtime.engines import Engine
from vidc.runtime.files import Files
from vidc.runtime.graphs import Runners
from vidc.runtime.inputs import LATENT, NOISE, PROMPT
from vidc.runtime.noise import NoiseSource
from vidc.runtime.programs.base import FRAMES, LATENTS, Resources, Session
from vidc.runtime.programs.pixels import levels
from vidc.runtime.programs.rope import Rope
from vidc.runtime.programs.stream import StreamSpec
from vidc.runtime.text import TextEncoder

TEXT_ENCODER = "text_encoder"


class CausalVideo(Session[StreamSpec]):
    """One video stream.

    When a block is returned, its keys and values in the ring are still those of a noisy latent. The
    clean pass, which replaces them, is pending: ``step``, ``generate``, ``remember``, ``prompt``
    and ``flush`` run it first. ``switch_prompt`` recomputes the same keys and values, so it drops
    the pass; so does ``reset``. If the engines can be captured, a block's denoising steps are one
    CUDA graph and its clean pass is another. A prompt switch is captured when a stream first
    recomputes that number of frames.

    Sizes in shapes: ``B`` videos; ``F`` latent frames of a block, each ``[C, h, w]``; frames of
    ``H x W`` pixels; ``L`` tokens of a prompt, each an embedding of ``E`` values.
    """

    Spec = StreamSpec
    teacher_forced: ClassVar[tuple[tuple[str, str], ...]] = (("denoise", "flow"),)
    forces_blocks: ClassVar[bool] = True
    decoder_names: ClassVar[tuple[str, str]] = ("vae", "VAE")
    _prompted: bool

    @classmethod
    def share(
        cls, files: Files, engines: Mapping[str, Engine], device: torch.device
    ) -> TextEncoder | None:
        """Opens the text encoder of a bundle that has one.

        Raises:
            GateError: ``VIDC-BUNDLE-TOKENIZER``.
        """
        engine = engines.get(TEXT_ENCODER)
        return None if engine is None else TextEncoder(engine, files.read(TOKENIZER), device)

    @classmethod
    def cover(cls, resources: Resources, inputs: Any, played: Any) -> None:
        """Makes the calls that a rollout does not: golden data record them.

        They are clean passes and prompt switches at every position of the ring, the text encoder,
        the VAE's encoder, and decoders other than the default one.
        """
        from vidc.runtime.programs.stream_cover import cover

        cover(resources, inputs, played)

    @property
    def latents(self) -> Tensor:
        """Copy of the newest block's clean latents: float32 ``[B, F, C, h, w]`` on the device.

        Zeros before the first block.
        """
        with self._turn(LATENTS, retryable=True):
            newest = self._history[:, -self.spec.block :].clone()
        return self._resources.runners[LATENTS].hand_out(newest)

    def embeds(self, prompt: Tensor | str) -> Tensor:
        """Returns the embeddings ``[B, L, E]`` of a prompt, for ``prompt`` or ``switch_prompt``.

        Args:
            prompt: text, or embeddings, which are checked and returned.

        Raises:
            UsageError: ``VIDC-PROMPT-SHAPE``, ``VIDC-PROMPT-NO-ENCODER``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-BUNDLE-TOKENIZER``.
        """
        shape = self.spec.prompt_shape
        if isinstance(prompt, str):
            encoder: TextEncoder | None = self._resources.shared
            if encoder is None:
                raise UsageError(
                    "VIDC-PROMPT-NO-ENCODER",
                    "the bundle has no text encoder, so it cannot take a prompt as text",
                    "pass text embeddings (--prompt-embeds FILE), or build with --text-encoder",
                )
            with self._turn(LATENTS, retryable=True):
                embeds = encoder(prompt).expand(shape).clone()
            return self._resources.runners[LATENTS].hand_out(embeds)
        return self._take(PROMPT, prompt, shape)

    def prompt(self, prompt: Tensor | str) -> None:
        """Sets the prompt of later blocks.

        Keys and values of earlier blocks stay those of their prompts; ``switch_prompt`` recomputes
        them.

        Args:
            prompt: text embeddings ``[B, L, E]`` of any float dtype, or text if the bundle has a
                text encoder.

        Raises:
            VidcError: as raised by ``embeds``.
        """
        # A block that was remembered before the first prompt has no keys and values yet.
        if self._frame and not self._prompted:
            self.switch_prompt(prompt)
            return
        embeds = self.embeds(prompt)
        with self._turn(LATENTS, work="the prompt"):
            self._finish_block()  # Under the old prompt.
            self._buffers["text_kv"].set({"text_embeds": embeds})
            self._replay_text()
        self._prompted = True

    def switch_prompt(self, prompt: Tensor | str) -> None:
        """Sets a new prompt and recomputes the window's keys and values under it.

        Keys and values of the sink stay, unless the stream still fits the window: then all are
        recomputed. The newest block is always among them, so its pending pass is dropped.
        """
        end = self._frame
        if end == 0:
            self.prompt(prompt)
            return
        embeds = self.embeds(prompt)
        frames = self.spec.recached(end)
        with self._turn(LATENTS, work="the prompt switch"):
            self._buffers["text_kv"].set({"text_embeds": embeds})
            self._end.fill_(end)
            self._replay_switch[frames]()
            self._pending = False
        self._prompted = True

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block.

        Args:
            noise: ``[steps, B, F, C, h, w]``, standard normal. Denoising starts from the first
                entry; each later entry is mixed into the result of the step before it. Default:
                drawn from the seed.

        Returns:
            uint8 ``[frames, H, W, 3]`` on the device, or ``[B, frames, H, W, 3]`` if ``B`` is above
            1. A block has ``4 F`` frames, the first one ``4 F - 3``.

        Raises:
            UsageError: ``VIDC-SESSION-NO-PROMPT``, ``VIDC-SESSION-NOISE``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        self._generate(noise)
        return self._decode(self._buffers["denoise"]["latent"], after_caller=False)

    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next block without decoding it.

        Args:
            noise: as in ``step``.

        Returns:
            The block's clean latent, float32 ``[B, F, C, h, w]`` on the device. ``decode`` takes
            latents in the order of their blocks.

        Raises:
            VidcError: as raised by ``step``.
        """
        self._generate(noise)
        return self.latents

    def decode(self, latent: Tensor) -> Tensor:
        """Decodes the next block and returns its frames as ``step`` does.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        return self._decode(self._checked_latent(latent), after_caller=True)

    def remember(self, latent: Tensor) -> None:
        """Appends a clean latent ``[B, F, C, h, w]`` as the next block, instead of generating one.

        Before the first prompt, one block can be appended. A second one would run the clean pass of
        the first, which reads the prompt.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``,
                ``VIDC-SESSION-NO-PROMPT``.
        """
        latent = self._checked_latent(latent)
        if self._pending:
            self._require_prompt()
        with self._turn(LATENTS, retryable=True):
            self._finish_block()
            self._append(latent)
            self._advance()

    def force(self, latent: Tensor) -> None:
        """Replaces the newest block's clean latent by another ``[B, F, C, h, w]``.

        Later blocks continue from it. Its clean pass is pending, also if that of the old latent has
        run, and reads the prompt that is set when it runs. Decoded frames do not change.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``; ``VIDC-SESSION-NO-BLOCK``,
                there is no block yet; ``VIDC-SESSION-UNFINISHED``.
        """
        latent = self._checked_latent(latent)
        if not self._frame:
            raise UsageError(
                "VIDC-SESSION-NO-BLOCK",
                "the stream has no block whose latent could be replaced",
                "call session.step() or session.remember(...) first",
            )
        self._require_finished()
        with self._turn(LATENTS, retryable=True):
            self._history[:, -self.spec.block :].copy_(latent)
            self._pending = True

    def flush(self) -> None:
        """Runs the newest block's pending clean pass now, not at the start of the next block.

        Call it while frames are encoded or shown: ``step`` then starts with denoising. It changes
        no result. If the engines fail, call it again, or go on with ``step``, which runs the pass.

        Raises:
            UsageError: ``VIDC-SESSION-NO-PROMPT``, a pass is pending and there is no prompt yet.
        """
        if self._pending:
            self._require_prompt()
        with self._turn(LATENTS, retryable=True):
            self._finish_block()

    def _allocate(self, device: torch.device) -> None:
        spec = self.spec
        self._rope = Rope(spec, device)
        zeros = partial(torch.zeros, dtype=torch.float32, device=device)
        self._history = zeros((spec.batch, spec.window, *spec.latent))
        self._noise = zeros(spec.noise_shape)
        self._end = torch.zeros(1, dtype=torch.int64, device=device)
        """Number of latent frames before the next block."""

    def _capture(self, runners: Runners) -> None:
        runner = runners[LATENTS]
        clean = partial(self._write_keys_values, self.spec.block)
        text = partial(self._run, "text_kv")
        self._end.fill_(self.spec.block)  # For the warm-up: ``_end - frames`` must not be negative.
        prepared = runner.prepare(
            [self._block, clean, text], [partial(self._block, 1), clean, text]
        )
        self._replay_block, self._replay_clean, self._replay_text = prepared
        # A stream uses few of these, and none before its first frames: they are captured late.
        self._replay_switch = {
            frames: runner.prepare_at_first_call(partial(self._recache, frames))
            for frames in (self.spec.block, *self.spec.recache_frames)
        }
        decoders = self.spec.decode_components
        works = runners[FRAMES].prepare([partial(self._run, name) for name in decoders])
        self._replay_decoder = dict(zip(decoders, works, strict=True))

    def _clear(self) -> None:
        super()._clear()
        self._history.zero_()
        steps, *shape = self._noise.shape
        self._source = NoiseSource(self.seed, steps, tuple(shape), self._noise.device)
        self.blocks = 0
        """Blocks generated so far."""
        self._frame = 0
        self._pending = False
        """True if the newest block's clean pass has not run yet."""
        self._prompted = False
        self._decoded = False
        """True once the first block is decoded: later ones have a component of their own."""

    def _require_prompt(self) -> None:
        if not self._prompted:
            raise UsageError(
                "VIDC-SESSION-NO-PROMPT",
                "the session has no prompt yet",
                "call session.prompt(...) before the first block",
            )

    def _generate(self, noise: Tensor | None) -> None:
        self._require_prompt()
        given = None if noise is None else self._take(NOISE, noise, self.spec.noise_shape)
        with self._turn(LATENTS, after_caller=given is not None, retryable=True):
            if given is None:
                self._source.fill(self._noise, self.blocks)
            else:
                self._noise.copy_(given)
            self._finish_block()
            self._unfinished = True
            self._replay_block()
            self._watch(LATENTS, self._buffers["denoise"]["latent"])
            self._advance()
        if given is None:
            self._source.draw_ahead(self.blocks)

    def _advance(self) -> None:
        """Counts a new block and marks its clean pass as pending."""
        self._frame += self.spec.block
        self._unfinished = False
        self.blocks += 1
        self._pending = True

    def _finish_block(self) -> None:
        """Sets ``_end`` for the next block and runs the pending clean pass, if there is one.

        If the next block fails and is repeated, the pass does not run again: by then, keys and
        values of the block's noise may have replaced frames in the ring that the pass attends to.
        """
        self._end.fill_(self._frame)
        if self._pending:
            self._replay_clean()
            self._pending = False

    def _decode(self, latent: Tensor, after_caller: bool) -> Tensor:
        name = self.spec.decode_components[self._decoded]
        runners = self._resources.runners
        runners[FRAMES].follow(runners[LATENTS])
        with self._turn(FRAMES, after_caller, work="decoding"):
            self._buffers[name].set({"latent": latent})
            runners[LATENTS].follow(runners[FRAMES])
            self._replay_decoder[name]()
            self._watch(FRAMES, self._buffers[name]["frames"])
            frames = levels(self._buffers[name]["frames"])
        self._decoded = True
        return runners[FRAMES].hand_out(frames[0] if self.spec.batch == 1 else frames)

    def _block(self, steps: int | None = None) -> None:
        """Computes a block's clean latent from ``_noise`` and ``_end``.

        Args:
            steps: number of denoising steps, fewer than all for a warm-up; None for all.
        """
        spec, buffers = self.spec, self._buffers["denoise"]
        self._place("denoise", self._end, spec.block)
        latent, flow = buffers["latent"], buffers["flow"]
        latent.copy_(self._noise[0])
        schedule = [*zip(spec.timesteps, spec.sigmas, strict=True)]
        for index, (time, sigma) in enumerate(schedule[:steps]):
            buffers.set({"timestep": time})
            self._run("denoise")
            # x_t = (1 - sigma) x_0 + sigma noise and flow = noise - x_0.
            latent.sub_(flow, alpha=sigma)
            if index + 1 < len(spec.sigmas):
                latent.lerp_(self._noise[index + 1], spec.sigmas[index + 1])
        self._append(latent)

    def _append(self, latent: Tensor) -> None:
        self._history.copy_(torch.cat([self._history[:, self.spec.block :], latent], 1))

    def _recache(self, frames: int) -> None:
        """Recomputes keys and values of the newest frames under a new prompt."""
        self._run("text_kv")
        self._write_keys_values(frames)

    def _write_keys_values(self, frames: int) -> None:
        """Writes keys and values of the newest ``frames`` clean latent frames before ``_end``."""
        spec = self.spec
        name = spec.pending if frames == spec.block else f"recache_{frames}"
        self._place(name, self._end - frames, frames)
        latent = self._history[:, -frames:]
        self._buffers[name].set({"latent": latent, "timestep": spec.context_timestep})
        self._run(name)

    def _place(self, name: str, first: Tensor, frames: int) -> None:
        """Sets a component's position inputs: ``frames`` frames from index ``first``, ``[1]``."""
        spec, buffers = self.spec, self._buffers[name]
        self._rope.fill(buffers["rope_cos"], buffers["rope_sin"], first)
        buffers.set(
            {
                "position": first * spec.frame_tokens,
                "valid_length": (first + frames).clamp(max=spec.window) * spec.frame_tokens,
            }
        )

    def _checked_latent(self, latent: Tensor) -> Tensor:
        """Returns a caller's latent of a block; raises as ``decode``."""
        spec = self.spec
        return self._take(LATENT, latent, (spec.batch, spec.block, *spec.latent))
