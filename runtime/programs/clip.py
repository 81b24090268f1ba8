"""Program ``clip``: generates a clip from an image; all its frames are denoised together."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from vidc.plugins import engine_operators
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.sampler_step import sampler_step, sampler_step_reference
from vidc.runtime.graphs import Runners
from vidc.runtime.inputs import LATENT, Input
from vidc.runtime.noise import NoiseSource, block_noise
from vidc.runtime.programs.base import FRAMES, LATENTS, Session
from vidc.runtime.programs.clip_spec import ClipSpec
from vidc.runtime.programs.image import image_tensor
from vidc.runtime.programs.pixels import levels
from vidc.runtime.programs.sampler import step_table
from vidc.runtime.states import Buffers

IMAGE = Input(
    "image",
    "VIDC-CLIP-IMAGE",
    "pass a picture of PIL in mode RGB, or pixels from -1 to 1 as [1, 3, height, width]",
)
IMAGE_NOISE = Input(
    "image_noise", "VIDC-SESSION-NOISE", "give one value a pixel: [1, 3, height, width]"
)
EMBEDS = Input("embeds", "VIDC-CLIP-EMBEDS", "pass the image's CLIP embedding as [1, 1, width]")
NOISE = Input("noise", "VIDC-SESSION-NOISE", "give noise of the shape in session.spec.noise_shape")
FPS, MOTION, NOISE_AUG = 7, 127, 0.02
"""Defaults of the conditioning numbers, as in diffusers' pipeline."""
_MAX_NUMBER = 1000
"""Upper limit of a conditioning number."""

Progress = Callable[[int, Tensor], object]
"""Called with the number of steps done and the latent ``[1, T, C, h, w]``. Clone it to keep it."""


class Clip(Session[ClipSpec]):
    """Generates clips of one size.

    If the engines can be captured, all denoising steps are one CUDA graph replay.

    Sizes in shapes: ``T`` frames of ``H x W`` pixels, latent frames ``[C, h, w]``, an image
    embedding of ``E`` values.
    """

    Spec = ClipSpec
    teacher_forced: ClassVar[tuple[tuple[str, str], ...]] = (
        ("denoise", "velocity"),
        ("denoise_shallow", "velocity"),
    )
    decoder_names: ClassVar[tuple[str, str]] = ("vae", "VAE")

    def condition(
        self,
        image: Any = None,
        *,
        embeds: Tensor | None = None,
        fps: float = FPS,
        motion: float = MOTION,
        noise_aug: float = NOISE_AUG,
        image_noise: Tensor | None = None,
    ) -> None:
        """Sets the image that later clips start from.

        Args:
            image: picture of PIL in mode RGB, or pixels ``[1, 3, H, W]`` from -1 to 1.
            embeds: CLIP embedding of the image, ``[1, 1, E]``; a bundle with an image encoder
                computes it by default.
            fps: frames per second at which the clip's motion looks right.
            motion: motion bucket; a larger one gives more motion.
            noise_aug: standard deviation of the noise that is added to the image's pixels before it
                is encoded.
            image_noise: standard normal noise ``[1, 3, H, W]``, which is multiplied by
                ``noise_aug``. Default: drawn from the seed.

        Raises:
            UsageError: ``VIDC-CLIP-IMAGE``, ``VIDC-CLIP-EMBEDS``, ``VIDC-CLIP-NO-ENCODER``,
                ``VIDC-CLIP-NUMBER``, ``VIDC-SESSION-NOISE``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        spec = self.spec
        if embeds is None and not spec.image_encoder:
            raise UsageError(
                "VIDC-CLIP-NO-ENCODER",
                "the bundle has no image encoder, and no embedding of the image is given",
                "pass embeds=... (--image-embeds FILE), or build with clip.image_encoder = true",
            )
        shape = (1, 3, *spec.video)
        pixels = self._take(IMAGE, image_tensor(image, spec.video), shape)
        if embeds is not None:
            embeds = self._take(EMBEDS, embeds, (1, 1, spec.image_dim))
        # The network was trained on fps - 1.
        ids = [
            _number(fps, "fps", 1) - 1,
            _number(motion, "motion"),
            _number(noise_aug, "noise_aug"),
        ]
        if image_noise is None:
            # Noise block 2n is clip n's image noise, block 2n + 1 its latent noise.
            image_noise = block_noise(self.seed, 2 * self.clips, 1, shape)[0]
        noise = self._take(IMAGE_NOISE, image_noise, shape)
        with self._turn(LATENTS, work="the image"):
            self._buffers["vae_encode"].set({"image": pixels})
            self._buffers["vae_encode"]["image"].add_(noise.to(self._table.device), alpha=ids[2])
            for index, value in enumerate(ids):
                self._buffers["condition_clip"]["ids"][0, index] = value
            if embeds is None:
                self._buffers["image_encoder"].set({"image": pixels})
                self._replay_image_encoder()
                embeds = self._buffers["image_encoder"]["embeds"]
            self._buffers["condition_clip"].set({"embeds": embeds})
            self._replay_condition()
            self._watch(LATENTS, self._image)
        self._conditioned = True

    def generate(
        self,
        image: Any = None,
        *,
        noise: Tensor | None = None,
        progress: Progress | None = None,
        **given: Any,
    ) -> Tensor:
        """Generates a clip and returns its latent, float32 ``[1, T, C, h, w]``, for ``decode``.

        Args:
            image: as in ``condition``; by default, the image of the last clip.
            noise: standard normal, of shape ``spec.noise_shape``. Default: drawn from the seed.
            progress: called after each step. On a GPU, each step is then a CUDA graph of its own,
                and the host waits for it.
            given: further arguments of ``condition``.

        Raises:
            UsageError: ``VIDC-CLIP-NO-IMAGE``, ``VIDC-SESSION-NOISE``, ``VIDC-SESSION-FINITE``;
                as raised by ``condition``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        if image is not None or given:
            self.condition(image, **given)
        if not self._conditioned:
            raise UsageError(
                "VIDC-CLIP-NO-IMAGE",
                "the session has no image yet",
                "pass one: session.generate(image)",
            )
        drawn = None if noise is None else self._take(NOISE, noise, self.spec.noise_shape)
        with self._turn(LATENTS, after_caller=drawn is not None, retryable=True):
            if drawn is None:
                self._source.fill(self._noise, 2 * self.clips + 1)
            else:
                self._noise.copy_(drawn)
            if progress is None:
                self._replay_clip()
            else:
                self._generate_in_steps(progress)
            self._watch(LATENTS, self._latent)
            self.clips += 1
            latent = self._latent.clone()
        if drawn is None:
            self._source.draw_ahead(2 * self.clips + 1)
        return self._resources.runners[LATENTS].hand_out(latent)

    def decode(self, latent: Tensor) -> Tensor:
        """Decodes a clip's latent ``[1, T, C, h, w]``, ``spec.chunk`` frames at a time.

        Returns:
            uint8 ``[T, H, W, 3]`` on the device.

        Raises:
            UsageError: ``VIDC-SESSION-LATENT``, ``VIDC-SESSION-FINITE``.
            GateError: ``VIDC-SESSION-NOT-FINITE``.
        """
        spec, runners = self.spec, self._resources.runners
        given = self._take(LATENT, latent, spec.noise_shape[1:])
        runners[FRAMES].follow(runners[LATENTS])
        with self._turn(FRAMES, work="decoding"):
            chunks = []
            for chunk in given.to(self._table.device).split(spec.chunk, 1):
                self._buffers["vae_decode"].set({"latent": chunk})
                self._replay_decoder()
                self._watch(FRAMES, self._buffers["vae_decode"]["frames"])
                chunks.append(levels(self._buffers["vae_decode"]["frames"])[0])
            frames = torch.cat(chunks)
        return runners[FRAMES].hand_out(frames)

    def _allocate(self, device: torch.device) -> None:
        spec = self.spec
        zeros = partial(torch.zeros, dtype=torch.float32, device=device)
        self._table = step_table(spec.sigmas, spec.fresh_noise, device)
        self._noise = zeros(spec.noise_shape)
        self._latent = zeros(spec.noise_shape[1:])
        self._image = zeros((1, *spec.latent))
        """Latent of the image, unscaled."""
        self._progress = torch.zeros(2, dtype=torch.int64, device=device)
        """State of ``sampler_step``: the number of the next step, and 0."""
        self._guidance = torch.linspace(
            *spec.guidance, spec.frames, dtype=torch.float32, device=device
        )
        first = spec.sigmas[0]
        self._start = (first * first + 1) ** 0.5
        # Without a kernel for this GPU, the reference computes the same in a dozen launches.
        fused = engine_operators.kernel_error(device, ("sampler_step",)) is None
        self._update = sampler_step if fused else sampler_step_reference
        if "denoise" in self._buffers:  # A decoder may play alone.
            self._allocate_passes(device)

    def _allocate_passes(self, device: torch.device) -> None:
        """Makes a step's buffers; with two passes, their tensors are views of shared ones."""
        passes = [self._buffers["denoise"]]
        if self.spec.two_passes:
            passes.append(Buffers(self._resources.engines["denoise"].signature, device))
        self._sample = torch.cat([each["sample"] for each in passes])
        self._velocity = torch.cat([each["velocity"] for each in passes])
        self._timestep = passes[0]["timestep"]
        samples, velocities = (x.chunk(len(passes)) for x in (self._sample, self._velocity))
        for half, buffers in enumerate(passes):
            buffers.inputs |= {"sample": samples[half], "timestep": self._timestep}
            buffers.outputs["velocity"] = velocities[half]
            if self.spec.two_passes:
                buffers.set({"half": half})
        self._passes = passes
        if self.spec.cached:
            # Both components have the same inputs and outputs.
            self._buffers["denoise_shallow"] = passes[0]

    def _capture(self, runners: Runners) -> None:
        denoisers = [name for name in self.spec.components if name in self.spec.calls["block"]]
        steps = [partial(self._step, name) for name in denoisers]
        works: list[Callable[[], object]] = [self._clip, self._begin, self._condition, *steps]
        if self.spec.image_encoder:
            works.append(partial(self._run, "image_encoder"))
        prepared = runners[LATENTS].prepare(works)
        self._replay_clip, self._replay_begin, self._replay_condition, *others = prepared
        self._replay_step = dict(zip(denoisers, others, strict=False))
        if self.spec.image_encoder:
            self._replay_image_encoder = others[-1]
        (self._replay_decoder,) = runners[FRAMES].prepare([partial(self._run, "vae_decode")])

    def _clear(self) -> None:
        super()._clear()
        steps, *shape = self._noise.shape
        self._source = NoiseSource(self.seed, steps, tuple(shape), self._noise.device)
        self.clips = 0
        """Clips generated so far."""
        self._conditioned = False

    def _condition(self) -> None:
        """Encodes the image and computes what all steps of a clip share."""
        self._run("vae_encode")
        self._image.copy_(self._buffers["vae_encode"]["latent"])
        self._run("condition_clip")
        # In the unconditional half, the image's channels stay zeros.
        beside = self._sample[-1, :, self.spec.latent[0] :]
        beside.copy_(self._image.expand(beside.shape))

    def _clip(self) -> None:
        """Computes a clip's latent from ``_noise``."""
        self._begin()
        for step in range(self.spec.steps):
            self._step(self.spec.denoiser(step))

    def _generate_in_steps(self, progress: Progress) -> None:
        """Computes a clip's latent with one replay a step, and reports each step."""
        self._replay_begin()
        for step in range(self.spec.steps):
            self._replay_step[self.spec.denoiser(step)]()
            if self._progress.is_cuda:
                torch.cuda.current_stream(self._progress.device).synchronize()
            progress(step + 1, self._latent)

    def _begin(self) -> None:
        """Sets latent, input and timestep of the first step from ``_noise``."""
        self._progress.zero_()
        self._timestep.copy_(self._table[0, :1])
        self._latent.copy_(self._noise[0] * self._start)
        self._sample[:, :, : self.spec.latent[0]] = self._latent * (1 / self._start)

    def _step(self, denoiser: str) -> None:
        """Runs ``denoise`` or ``denoise_shallow`` and updates the latent by one sampler step."""
        for buffers in self._passes:
            self._resources.engines[denoiser].run(buffers, self._states)
        noise = self._noise if self.spec.fresh_noise else None
        self._update(
            self._velocity, noise, self._guidance, self._table, self._progress, self._latent,
            self._sample, self._timestep,
        )  # fmt: skip


def _number(value: object, name: str, least: int = 0) -> float:
    """Returns a conditioning number from ``least`` to ``_MAX_NUMBER``.

    Raises:
        UsageError: ``VIDC-CLIP-NUMBER``.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = float(value)
        if least <= number <= _MAX_NUMBER:
            return number
    raise UsageError(
        "VIDC-CLIP-NUMBER",
        f"{name} is {str(value)[:60]}, expected a number from {least} to {_MAX_NUMBER}",
        f"leave it out for the default; fps={FPS}, motion={MOTION} and noise_aug={NOISE_AUG} are "
        "diffusers' defaults",
    )
