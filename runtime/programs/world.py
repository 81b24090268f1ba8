"""Program ``world``: a live world that makes one frame after another from actions."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from vidc.runtime.graphs import Runners
from vidc.runtime.programs.acting import Acting, shift
from vidc.runtime.programs.base import FRAMES, LATENTS
from vidc.runtime.programs.pixels import COLORS
from vidc.runtime.programs.world_inputs import FRAME, images_of
from vidc.runtime.programs.world_spec import SamplerSpec, WorldSpec


def truncated(frame: Tensor) -> Tensor:
    """Rounds pixels from -1 to 1 down to one of 256 levels, as DIAMOND's code does after a call."""
    return levels(frame).float().div(255).mul(2).sub(1)


def levels(frame: Tensor) -> Tensor:
    """Converts pixels from -1 to 1 to uint8, rounded down."""
    return frame.add(1).div(2).mul(255).to(torch.uint8)


class World(Acting[WorldSpec]):
    """One world: past frames and actions are states.

    One replay computes a frame: noise, all calls of both networks, the conversion to 8 bits and
    the shift of the states. It is a CUDA graph if the engines can be captured.

    A new session has gray past frames and no actions; ``spawn`` and ``start`` give it others.
    """

    Spec = WorldSpec
    teacher_forced: ClassVar[tuple[tuple[str, str], ...]] = (
        ("denoise", "denoised"),
        ("upsample", "denoised"),
    )
    rounded_feedback: ClassVar[bool] = True
    decoder_names: ClassVar[tuple[str, str]] = ("pixels", "8-bit")

    def spawn(self, low: Tensor, full: Tensor | None = None, actions: Tensor | None = None) -> None:
        """Starts from a state, such as a folder of DIAMOND's ``spawn`` holds.

        Args:
            low: past low-resolution frames ``[past, 3, h, w]``, the oldest first: uint8, or
                floating point from -1 to 1. ``low_res.npy`` of a folder.
            full: past frames ``[n, 3, H, W]``, of which the newest are used; the same dtypes.
                ``full_res.npy``. Required if the model has an upsampler, ignored otherwise.
            actions: one for each past frame, ``[past, inputs]`` as in ``act``. Default: none. The
                last row is replaced by the next action. ``act.npy``.

        Raises:
            UsageError: ``VIDC-SESSION-START``, ``VIDC-SESSION-ACTIONS``, ``VIDC-SESSION-FINITE``.
        """
        spec = self.spec
        frames = self._past_frames("low", low, (spec.past, COLORS, *spec.low))
        rows = self._past_actions(actions)
        newest = None
        if spec.past_full:
            count = len(full) if isinstance(full, Tensor) and full.ndim else spec.past_full
            shape = (max(count, spec.past_full), COLORS, *spec.frame_size)
            newest = self._past_frames("full", full, shape)[-spec.past_full :]
        with self._turn(LATENTS, retryable=True):
            self._states["past.low"].copy_(frames.reshape(spec.past_shape))
            self._states["actions"].copy_(rows[None])
            if newest is not None:
                self._states["past.full"].copy_(newest.reshape(spec.past_full_shape))

    def start(self, images: Tensor) -> None:
        """Starts from images, as ``step`` returns frames, without past actions.

        Low-resolution frames are made from them by bicubic interpolation with antialiasing.

        Args:
            images: uint8 ``[n, H, W, 3]``, the oldest first; if there are fewer than the model
                sees, the first one is repeated.

        Raises:
            UsageError: ``VIDC-SESSION-START``.
        """
        spec = self.spec
        needed = max(spec.past, spec.past_full)
        full = self._past_frames("images", images_of(images, spec, needed))
        low = full
        if spec.factor > 1:
            low = functional.interpolate(full, spec.low, mode="bicubic", antialias=True)
        self.spawn(low[-spec.past :].clamp(-1, 1), full)

    def step(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next frame: uint8 ``[1, H, W, 3]`` on the device.

        Args:
            noise: the frame's draws, flattened one after the other in the order of
                ``spec.draws``: ``[1, values]``. Default: drawn from the seed.

        Raises:
            UsageError: ``VIDC-SESSION-NOISE``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        return self._generate(noise, self._picture)

    def generate(self, noise: Tensor | None = None) -> Tensor:
        """Generates the next frame: float32 ``[1, 3, H, W]``, one of 256 levels from -1 to 1."""
        return self._generate(noise, self._frame)

    def decode(self, latent: Tensor) -> Tensor:
        """Converts a frame of ``generate`` to uint8 ``[1, H, W, 3]``.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``.
        """
        frame = self._take(FRAME, latent, self.spec.frame_shape)
        with self._turn(FRAMES, retryable=True):
            picture = _picture(frame)
        return self._resources.runners[FRAMES].hand_out(picture)

    def _allocate(self, device: torch.device) -> None:
        super()._allocate(device)
        spec = self.spec
        self._frame = torch.zeros(spec.frame_shape, dtype=torch.float32, device=device)
        self._picture = torch.zeros((1, *spec.frame_size, COLORS), dtype=torch.uint8, device=device)

    def _capture(self, runners: Runners) -> None:
        (self._replay_frame,) = runners[LATENTS].prepare([self._next_frame])

    def _clear(self) -> None:
        super()._clear()
        self._states["actions"].copy_(self._none.expand_as(self._states["actions"]))

    def _generate(
        self, noise: Tensor | None, result: Tensor, checked: Tensor | None = None
    ) -> Tensor:
        """Generates a frame as ``Acting`` does; ``fetch`` then waits for it."""
        made, runners = super()._generate(noise, result, checked), self._resources.runners
        runners[FRAMES].follow(runners[LATENTS])
        return made

    def _next_frame(self) -> None:
        """Computes a frame from ``_noise``, ``_action`` and the states, and shifts the states."""
        spec, draws = self.spec, iter(self._draws)
        actions = self._states["actions"]
        actions[:, -1].copy_(self._action)
        low = frame = self._sampled("denoise", spec.denoise, draws)
        if spec.upsample is not None:
            larger = functional.interpolate(low, scale_factor=spec.factor, mode="bicubic")
            self._buffers["upsample"].set({"low": larger})
            frame = self._sampled("upsample", spec.upsample, draws)
            shift(self._states["past.full"], frame)
        shift(self._states["past.low"], low)
        actions.copy_(actions.roll(-1, dims=1))
        self._frame.copy_(frame)
        self._picture.copy_(_picture(frame))

    def _sampled(self, network: str, sampler: SamplerSpec, draws: Iterator[Tensor]) -> Tensor:
        """Returns a frame of a network.

        The network gets the noise level from before ``gammas`` raise it, as in DIAMOND's public
        sampler. In the algorithm of Karras et al., it gets the raised level.
        """
        x, inputs = next(draws), self._buffers[network].inputs
        if "added" in inputs:
            inputs["added"].zero_()
            noise = torch.tensor(sampler.past_noise, dtype=torch.float32)
            inputs["past_noise"].fill_(float(noise.log() / 4) if sampler.past_noise > 0 else 0.0)
        following = (*sampler.sigmas[1:], 0.0)
        for sigma, after, gamma in zip(sampler.sigmas, following, sampler.gammas, strict=True):
            raised = sigma * (gamma + 1)
            if gamma > 0:
                x = x + next(draws) * sampler.churn_noise * (raised**2 - sigma**2) ** 0.5
            if sampler.past_noise > 0:
                next(draws)  # Offset noise, which the public sampler multiplies by 0.
                inputs["added"].add_(next(draws), alpha=sampler.past_noise)
            slope = (x - self._denoised(network, x, sigma)) / raised
            if sampler.order == 2 and after > 0:
                end = x + slope * (after - raised)
                slope = (slope + (end - self._denoised(network, end, after)) / after) / 2
            x = x + slope * (after - raised)
        return x

    def _denoised(self, network: str, x: Tensor, sigma: float) -> Tensor:
        """Calls a network once and truncates its result to 256 levels."""
        buffers = self._buffers[network]
        buffers.set({"x": x, "sigma": sigma})
        self._run(network)
        # Checked before truncation, which would turn NaN and infinities into pixels.
        self._watch(FRAMES, buffers["denoised"])
        return truncated(buffers["denoised"])


def _picture(frame: Tensor) -> Tensor:
    """Converts a frame ``[1, 3, H, W]`` of one of 256 levels, from -1 to 1, to uint8 NHWC."""
    # Rounded, not truncated: a sampler's last step leaves levels with float32 rounding errors.
    scaled = frame.add(1).mul(127.5).round().clamp(0, 255)
    return scaled.permute(0, 2, 3, 1).to(torch.uint8, memory_format=torch.contiguous_format)
