"""Program ``ring_world``: a live world; past latent frames are keys and values in KV rings."""

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from vidc.plugins.errors import UsageError
from vidc.runtime.graphs import Runners, Work
from vidc.runtime.inputs import LATENT
from vidc.runtime.programs.acting import Acting
from vidc.runtime.programs.base import FRAMES, LATENTS, Resources
from vidc.runtime.programs.pixels import COLORS, levels
from vidc.runtime.programs.ring_world_spec import RingWorldSpec
from vidc.runtime.programs.rope import frequencies
from vidc.runtime.programs.world_inputs import action_of, images_of
from vidc.runtime.states import Buffers, States

_NOISE_LIMIT = 20.0
"""Noise is clamped from minus this to this, as in Oasis's public sampler."""


class RingWorld(Acting[RingWorldSpec]):
    """One world.

    The states are rings of keys and values of past frames. A latent frame takes one call: it
    computes the modulation from the action, runs all denoising steps, and runs the clean pass,
    which writes keys and values of the finished latent over those of the noisy one. The call is one
    CUDA graph replay if the engines can be captured. Decoding is another one, and may overlap the
    next frame.

    A new session has no past frames; ``start`` and ``spawn`` write some.

    Sizes in shapes: latent frames ``[C, h, w]``, frames of ``H x W`` pixels.
    """

    Spec = RingWorldSpec
    teacher_forced: ClassVar[tuple[tuple[str, str], ...]] = (("denoise", "velocity"),)
    forces_blocks: ClassVar[bool] = True
    decoder_names: ClassVar[tuple[str, str]] = ("vae", "VAE")

    @classmethod
    def cover(cls, resources: Resources, inputs: Any, played: Any) -> None:
        """Encodes the first frame of a rollout."""
        engine = resources.engines.get("vae_encode")
        if engine is None or not played.frames:
            return
        buffers = Buffers(engine.signature, resources.device)
        picture = played.frames[min(played.frames)][0].to(resources.device)
        buffers.set({"image": picture.permute(0, 3, 1, 2).float() / 127.5 - 1})
        engine.run(buffers, States((engine.signature,), resources.device))

    def start(self, images: Tensor) -> None:
        """Starts a new stream from images, whose actions are zeros.

        Args:
            images: uint8 ``[n, H, W, 3]`` as ``step`` returns them, the oldest first. The newest
                ``spec.window`` are used.

        Raises:
            UsageError: ``VIDC-SESSION-START``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        count = len(images) if isinstance(images, Tensor) and images.ndim else 1
        self.spawn(images_of(images, self.spec, min(count, self.spec.window)))

    def spawn(self, low: Tensor, full: Tensor | None = None, actions: Tensor | None = None) -> None:
        """Starts a new stream from past frames and the actions that led to them.

        Args:
            low: past frames ``[n, 3, H, W]``, the oldest first, at most ``spec.window``: uint8, or
                floating point from -1 to 1.
            full: not used: frames have one resolution. In program ``world``, ``low`` and ``full``
                are two.
            actions: one for each past frame, ``[n, inputs]`` as in ``act``. Default: zeros.

        Raises:
            UsageError: ``VIDC-SESSION-START``, ``VIDC-SESSION-ACTIONS``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        spec, device = self.spec, self._resources.device
        count = len(low) if isinstance(low, Tensor) and low.ndim else 1
        shape = (min(max(count, 1), spec.window), COLORS, *spec.video)
        frames = self._past_frames("frames", low, shape)
        rows = torch.zeros(shape[0], spec.actions, device=device)
        if actions is not None:
            rows = action_of(actions, spec, tuple(rows.shape), device)
        with self._turn(LATENTS, work="the start"):
            next_action, latent = self._action.clone(), self._buffers["vae_encode"]["latent"]
            self._position.zero_()
            for frame, action in zip(frames.split(1), rows, strict=True):
                self._buffers["vae_encode"].set({"image": frame})
                self._replay_encoder()
                self._watch(LATENTS, latent)
                self._action.copy_(action)
                self._remember(latent)
            self._action.copy_(next_action)

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next frame: uint8 ``[1, H, W, 3]`` on the device.

        Args:
            noise: ``[1, C, h, w]``, flattened: ``[1, values]``. Default: drawn from the seed.

        Raises:
            UsageError: ``VIDC-SESSION-NOISE``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        self._generate(noise, self._latent, self._latent)
        return self._decode(self._latent, after_caller=False)

    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next frame's latent, float32 ``[1, C, h, w]``; ``noise`` as in ``step``."""
        return self._generate(noise, self._latent, self._latent)

    def force(self, latent: Tensor) -> None:
        """Replaces the newest frame's latent by another ``[1, C, h, w]``; later frames follow it.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``; ``VIDC-SESSION-NO-BLOCK``,
                there is no frame yet; ``VIDC-SESSION-UNFINISHED``.
        """
        given = self._take(LATENT, latent, self.spec.latent_shape)
        if not self.blocks:
            raise UsageError(
                "VIDC-SESSION-NO-BLOCK",
                "the stream has no frame whose latent could be replaced",
                "call session.step() first",
            )
        self._require_finished()
        with self._turn(LATENTS, work="the replacement"):
            self._position.sub_(1)
            self._latent.copy_(given)
            self._replay_clean()

    def decode(self, latent: Tensor) -> Tensor:
        """Decodes a latent ``[1, C, h, w]`` and returns its frame as ``step`` does.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        return self._decode(self._take(LATENT, latent, self.spec.latent_shape), after_caller=True)

    def _allocate(self, device: torch.device) -> None:
        super()._allocate(device)
        spec = self.spec
        self._latent = torch.zeros(spec.latent_shape, dtype=torch.float32, device=device)
        times = (*spec.timesteps, spec.context_timestep)
        self._timesteps = torch.tensor(times, dtype=torch.float32, device=device)
        self._frequencies = frequencies(spec.head_dim // 2).to(device)
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        """Index of the next frame in the stream, which begins with the frames of ``spawn``."""

    def _capture(self, runners: Runners) -> None:
        encode = partial(self._run, "vae_encode")
        works: list[Work] = [self._next_frame, self._condition, self._clean, encode]
        self._replay_frame, self._replay_condition, *others = runners[LATENTS].prepare(works)
        self._replay_clean, self._replay_encoder = others
        (self._replay_decoder,) = runners[FRAMES].prepare([partial(self._run, "vae_decode")])

    def _clear(self) -> None:
        super()._clear()
        self._latent.zero_()
        self._position.zero_()

    def _decode(self, latent: Tensor, after_caller: bool) -> Tensor:
        runners, buffers = self._resources.runners, self._buffers["vae_decode"]
        runners[FRAMES].follow(runners[LATENTS])
        with self._turn(FRAMES, after_caller, work="decoding", retryable=True):
            buffers.set({"latent": latent})
            runners[LATENTS].follow(runners[FRAMES])
            self._replay_decoder()
            self._watch(FRAMES, buffers["frames"])
            picture = levels(buffers["frames"])[0]
        return runners[FRAMES].hand_out(picture)

    def _remember(self, latent: Tensor) -> None:
        """Appends a clean frame with ``_action`` to the stream."""
        self._replay_condition()
        self._latent.copy_(latent)
        self._replay_clean()

    def _next_frame(self) -> None:
        """Generates ``_latent`` at ``_position`` from ``_draws`` and ``_action``; updates rings."""
        self._condition()
        self._place("denoise")
        buffers = self._buffers["denoise"]
        latent, velocity = buffers["latent"], buffers["velocity"]
        latent.copy_(self._draws[0].clamp(-_NOISE_LIMIT, _NOISE_LIMIT))
        for step, (keep, change) in enumerate(self.spec.steps):
            buffers.set({"step": step})
            self._run("denoise")
            latent.mul_(keep).add_(velocity, alpha=change)
        self._latent.copy_(latent)
        self._clean()

    def _condition(self) -> None:
        """Computes the modulation of all passes of a frame from ``_action``."""
        given = {"timesteps": self._timesteps, "action": self._action[None]}
        self._buffers["condition_frame"].set(given)
        self._run("condition_frame")

    def _clean(self) -> None:
        """Writes the keys and values of ``_latent`` at ``_position``, and adds 1 to it."""
        self._place("kv_update")
        passes = len(self._timesteps)
        self._buffers["kv_update"].set({"latent": self._latent, "step": passes - 1})
        self._run("kv_update")
        self._position.add_(1)

    def _place(self, component: str) -> None:
        """Sets a component's inputs that depend on ``_position``, without copies to the host."""
        angles = self._position.double() * self._frequencies
        self._buffers[component].set(
            {
                "rope_cos": angles.cos()[None],
                "rope_sin": angles.sin()[None],
                "position": self._position,
                "valid_length": (self._position + 1).clamp(max=self.spec.window),
            }
        )
