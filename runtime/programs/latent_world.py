"""Program ``latent_world``: a live world that makes latents from actions and decodes each."""

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from vidc.runtime.graphs import Runners, Work
from vidc.runtime.inputs import LATENT, Input
from vidc.runtime.programs.acting import Acting, shift
from vidc.runtime.programs.base import FRAMES, LATENTS, Resources
from vidc.runtime.programs.latent_world_spec import LatentWorldSpec
from vidc.runtime.programs.pixels import COLORS, levels
from vidc.runtime.programs.world_inputs import images_of

_PAST = Input(
    "past", "VIDC-SESSION-START", "pass past frames, or their latents, in the sizes of the model"
)


class LatentWorld(Acting[LatentWorldSpec]):
    """One world: past latents and actions are states.

    ``generate`` is one replay: what the steps of a frame share, these steps, and the shift of the
    states. ``decode`` is another one, which may overlap the next frame's ``generate``. Both are
    CUDA graphs if the engines can be captured.

    A new session has past latents of zeros and no actions; ``spawn`` and ``start`` give it others.
    """

    Spec = LatentWorldSpec
    teacher_forced: ClassVar[tuple[tuple[str, str], ...]] = (("denoise", "velocity"),)
    forces_blocks: ClassVar[bool] = True
    decoder_names: ClassVar[tuple[str, str]] = ("vae", "VAE")

    @classmethod
    def cover(cls, resources: Resources, inputs: Any, played: Any) -> None:
        """Encodes a frame of the rollout, which no rollout does."""
        if "vae_encode" in resources.engines and played.frames:
            with cls(resources) as session:
                session.start(played.frames[0][0])

    def spawn(
        self, past: Tensor, full: Tensor | None = None, actions: Tensor | None = None
    ) -> None:
        """Starts from a state: past frames, or latents, and their actions.

        Args:
            past: past frames ``[past, 3, H, W]``, the oldest first: uint8, or floating point from
                -1 to 1. Or their scaled latents, floating point ``[past, C, h, w]``.
            full: ignored, since the world has no second resolution.
            actions: one for each past frame, ``[past, inputs]`` as in ``act``, or their indices.
                Default: none. The last row is replaced by the next action.

        Raises:
            UsageError: ``VIDC-SESSION-START``, ``VIDC-SESSION-ACTIONS``, ``VIDC-SESSION-FINITE``.
        """
        spec = self.spec
        rows = self._past_actions(actions)
        pixels = None
        if isinstance(past, Tensor) and past.ndim == 4 and past.shape[1] == COLORS:
            shape = (spec.past, COLORS, *spec.video)
            pixels = self._past_frames("past", past, shape)
        else:
            past = self._take(_PAST, past, (spec.past, *spec.latent))
        with self._turn(LATENTS, work="the start"):
            latents = past if pixels is None else self._encoded(pixels)
            self._states["past"].copy_(latents.reshape(spec.past_shape))
            self._states["actions"].copy_(rows[None])

    def start(self, images: Tensor) -> None:
        """Starts from images, as ``step`` returns frames, without past actions.

        Args:
            images: uint8 ``[n, H, W, 3]``, the oldest first; if there are fewer than the model
                sees, the first one is repeated.

        Raises:
            UsageError: ``VIDC-SESSION-START``.
        """
        count = len(images) if isinstance(images, Tensor) and images.ndim else 1
        used = min(max(count, 1), self.spec.past)
        pixels = self._past_frames("images", images_of(images, self.spec, used))
        with self._turn(LATENTS, work="the start"):
            latents = self._encoded(pixels)
            first = latents[:1].expand(self.spec.past - used, -1, -1, -1)
            self._states["past"].copy_(torch.cat([first, latents]).reshape(self.spec.past_shape))
            self._states["actions"].copy_(self._past_actions(None)[None])

    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next frame's latent, float32 ``[1, C, h, w]``, for ``decode``.

        Args:
            noise: the frame's draws, flattened one after the other in the order of
                ``spec.draws``: ``[1, values]``. Default: drawn from the seed.

        Raises:
            UsageError: ``VIDC-SESSION-NOISE``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        return self._generate(noise, self._latent, self._latent)

    def force(self, latent: Tensor) -> None:
        """Replaces the newest frame's latent ``[1, C, h, w]``, from which later frames go on.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``.
        """
        given = self._take(LATENT, latent, self.spec.latent_shape)
        with self._turn(LATENTS, retryable=True):
            self._states["past"][:, -self.spec.latent[0] :].copy_(given)

    def decode(self, latent: Tensor) -> Tensor:
        """Decodes a frame.

        Returns:
            uint8 ``[1, H, W, 3]`` on the device.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        given = self._take(LATENT, latent, self.spec.latent_shape)
        runners, buffers = self._resources.runners, self._buffers["vae_decode"]
        runners[FRAMES].follow(runners[LATENTS])
        with self._turn(FRAMES, work="decoding"):
            buffers.set({"latent": given})
            self._decode_frame()
            self._watch(FRAMES, buffers["frames"])
            frames = levels(buffers["frames"])[0]
        return runners[FRAMES].hand_out(frames)

    def _allocate(self, device: torch.device) -> None:
        super()._allocate(device)
        spec = self.spec
        self._latent = torch.zeros(spec.latent_shape, dtype=torch.float32, device=device)
        if "condition_frame" in self._buffers:  # A decoder may play alone.
            given = self._buffers["condition_frame"]
            given.set({"timesteps": torch.tensor(spec.timesteps, dtype=torch.float32)})
            if spec.past_noise > 0:
                given.set({"bucket": spec.bucket})

    def _capture(self, runners: Runners) -> None:
        works: list[Work] = [self._next_latent, partial(self._run, "vae_encode")]
        self._replay_frame, self._encode_frame = runners[LATENTS].prepare(works)
        (self._decode_frame,) = runners[FRAMES].prepare([partial(self._run, "vae_decode")])

    def _clear(self) -> None:
        super()._clear()
        if "condition_frame" in self._buffers:
            self._states["actions"].copy_(self._past_actions(None)[None])

    def _encoded(self, pixels: Tensor) -> Tensor:
        """Returns the latents ``[n, C, h, w]`` of frames ``[n, 3, H, W]``; called in a turn."""
        made, buffers = [], self._buffers["vae_encode"]
        for image in pixels.split(1):
            buffers.set({"image": image})
            self._encode_frame()
            self._watch(LATENTS, buffers["latent"])
            made.append(buffers["latent"].clone())
        return torch.cat(made)

    def _next_latent(self) -> None:
        """Computes a latent from ``_draws``, ``_action`` and the states, and shifts the states."""
        spec, buffers = self.spec, self._buffers["denoise"]
        actions, past = self._states["actions"], self._states["past"]
        actions[:, -1].copy_(self._action)
        self._run("condition_frame")
        x = self._draws[0]
        if spec.past_noise > 0:
            buffers.set({"added": self._draws[1] * spec.past_noise})
        for step, (keep, change) in enumerate(spec.steps):
            buffers.set({"x": x, "step": step})
            self._run("denoise")
            velocity = buffers["velocity"]
            if spec.halves == 2:
                unconditional, conditional = velocity.split(1)
                velocity = unconditional + spec.guidance * (conditional - unconditional)
            x = x * keep + velocity * change
        shift(past, x)
        actions.copy_(actions.roll(-1, dims=1))
        self._latent.copy_(x)
