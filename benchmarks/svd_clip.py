"""Measures clips of an `svd` bundle beside diffusers' pipeline, eager and under torch.compile.

    PYTHONPATH=tests/support python benchmarks/svd_clip.py out/svd --clips 6 > result.json

All three have the bundle's weights, image, noise and sizes, and take turns. A clip is everything
from a picture to its frames on the device. ``unet_ms`` is the UNet of one step, ``unet_share`` the
UNet's part of a clip, ``overhead_ms`` a clip without the UNet, ``encoders_and_sampler_ms`` that
without the decoder too. Compiled is diffusers' own advice: the UNet with
``mode="reduce-overhead"``, and the VAE's decoder, whose weights diffusers moves in every clip,
without a mode. ``--steps`` replaces the number of steps of the bundle, which changes no engine.
``--against`` without a name measures the bundle alone, such as the memory of preset svd-t4.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import diffusers_svd
import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor, nn

from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.run import workload
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.verdict import judge
from vidc.compiler.config.tables import model_from_json
from vidc.exporters.families.svd import Svd
from vidc.runtime.bundle import Bundle, load
from vidc.runtime.manifest import Manifest, read_manifest
from vidc.runtime.noise import block_noise
from vidc.runtime.programs.base import LATENTS
from vidc.runtime.programs.clip import Clip
from vidc.runtime.programs.clip_spec import ClipSpec
from vidc.runtime.strict import plain

OURS, EAGER, COMPILED = "vidc", "eager", "compiled"
PASSES = 5
"""Our UNet alone, beside each clip."""
Samples = dict[str, list[float]]
Take = Callable[[], tuple[Tensor, Samples]]
"""Makes a clip; returns its latent and samples."""


class Timed(nn.Module):
    """A network that marks the start and the end of each call."""

    def __init__(self, network: nn.Module, clock: Clock) -> None:
        super().__init__()
        self.network = network
        self.clock = clock
        self.marks: list[tuple[Any, Any]] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        first = self.clock.mark()
        result = self.network(*args, **kwargs)
        self.marks.append((first, self.clock.mark()))
        return result

    def taken(self) -> list[float]:
        """Returns the milliseconds of each call since the last time."""
        found = [self.clock.between(*pair) for pair in self.marks]
        self.marks.clear()
        return found

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("network"), name)


class Ours:
    """Clips of the bundle."""

    def __init__(self, session: Clip, noise: Tensor, image: Image.Image, clock: Clock) -> None:
        self.session, self.noise, self.image, self.clock = session, noise, image, clock
        # One pass over the network's buffers; a graph where the session's work is one.
        runner, self.passes = session._resources.runners[LATENTS], session.spec.calls["block"]
        works = runner.prepare([partial(session._run, name) for name in self.passes])
        self.denoisers = dict(zip(self.passes, works, strict=True))

    def take(self) -> tuple[Tensor, Samples]:
        generate = partial(self.session.generate, self.image, noise=self.noise, noise_aug=0.0)
        latent, generating = self.clock.time(generate)
        _, decoding = self.clock.time(partial(self.session.decode, latent))
        spec = self.session.spec
        each = [self._step(spec.steps) for _ in range(PASSES)]
        return latent, figures(generating + decoding, each, spec.steps, [decoding])

    def _step(self, steps: int) -> float:
        """Milliseconds of the UNet in a step, the mean of a clip's."""
        times = {name: self.clock.time(work)[1] for name, work in self.denoisers.items()}
        return sum(times[name] * count for name, count in self.passes.items()) / steps


class Theirs:
    """Clips of diffusers' pipeline."""

    def __init__(
        self, pipe: Any, spec: ClipSpec, noise: Tensor, image: Image.Image, clock: Clock
    ) -> None:
        self.clock = clock
        pipe.unet, pipe.vae.decoder = Timed(pipe.unet, clock), Timed(pipe.vae.decoder, clock)
        self.unet, self.decoder = pipe.unet, pipe.vae.decoder
        self.latent = noise
        low, high = spec.guidance
        self.make = partial(
            pipe, image, height=spec.video[0], width=spec.video[1], num_frames=spec.frames,
            num_inference_steps=spec.steps, min_guidance_scale=low, max_guidance_scale=high,
            noise_aug_strength=0.0, decode_chunk_size=spec.chunk, output_type="pt",
            latents=noise[0].to(pipe.image_encoder.dtype), callback_on_step_end=self._keep,
        )  # fmt: skip

    def _keep(self, pipe: Any, step: int, time: Any, tensors: dict[str, Tensor]) -> dict[str, Any]:
        self.latent = tensors["latents"]
        return {}

    def take(self) -> tuple[Tensor, Samples]:
        _, whole = self.clock.time(self.make)
        unet = self.unet.taken()
        return self.latent, figures(whole, unet, len(unet), self.decoder.taken())


def figures(clip: float, unet: list[float], steps: int, decoder: list[float]) -> Samples:
    """Returns a clip's samples in milliseconds.

    Args:
        clip: time of it.
        unet: samples of a step's UNet.
        steps: of the clip.
        decoder: times of all its decoding.
    """
    denoising = steps * statistics.mean(unet)
    overhead = clip - denoising
    return {
        "clip_ms": [clip],
        "unet_ms": unet,
        "unet_share": [denoising / clip],
        "decode_ms": [sum(decoder)],
        "overhead_ms": [overhead],
        "encoders_and_sampler_ms": [overhead - sum(decoder)],
    }


def pipeline(
    folder: Path, manifest: Manifest, device: torch.device, compiled: str | None, clock: Clock
) -> Any:
    """diffusers' pipeline with the bundle's weights; ``compiled`` is the mode of the UNet's."""
    model = svd_of(manifest)
    made = {}
    for group in model.parts:
        weights = load_file(folder / manifest.weights[group].path, device=str(device))
        dtype = next(iter(weights.values())).dtype
        with torch.device(device):
            network = getattr(diffusers_svd, group)(model, weights)
        # Its blend factors are made on the CPU, whatever the default device.
        made[group] = network.to(device, dtype)
    pipe = diffusers_svd.pipeline(model, **made)
    if compiled is not None:
        pipe.unet = torch.compile(pipe.unet, mode=compiled, fullgraph=True, dynamic=False)
        pipe.vae.decoder = torch.compile(pipe.vae.decoder, fullgraph=True, dynamic=False)
    return pipe


def svd_of(manifest: Manifest) -> Svd:
    """Returns the model of a bundle."""
    model = model_from_json(manifest.config)
    assert isinstance(model, Svd)
    return model


def session_of(bundle: Bundle, model: Svd, steps: int | None) -> Clip:
    """Opens a session, perhaps of another number of steps."""
    resources = bundle.resources
    if steps is not None:
        sampler = replace(model.sampler, steps=steps)
        resources = replace(resources, spec=replace(resources.spec, sigmas=sampler.sigmas))
    session = bundle.program(resources)
    assert isinstance(session, Clip)
    return session


class Memory:
    """Memory of a GPU that a contestant adds to those before it; nothing on a CPU.

    ``device_in_use_bytes`` is all that is taken on the GPU, by whatever process: CUDA's context and
    the contestants before are in it.
    """

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        if self.cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(device)
            self.before = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)

    def added(self) -> dict[str, int] | None:
        if not self.cuda:
            return None
        allocated, reserved = self.before
        free, total = torch.cuda.mem_get_info()
        return {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated() - allocated,
            "peak_reserved_bytes": torch.cuda.max_memory_reserved() - reserved,
            "device_in_use_bytes": total - free,
        }


def measured(
    contestants: Mapping[str, Take], clips: int, latents: dict[str, Tensor]
) -> dict[str, Samples]:
    """Samples of contestants, which take turns, every second round in reverse."""
    found: dict[str, Samples] = {name: {} for name in contestants}
    for turn in range(clips):
        for name in contestants if turn % 2 else reversed(contestants):
            latents[name], samples = contestants[name]()
            for metric, values in samples.items():
                found[name].setdefault(metric, []).extend(values)
    return found


def ratios(found: Mapping[str, Samples]) -> dict[str, float]:
    """Our medians over theirs, by metric."""
    return {
        f"{metric}_over_{name}": statistics.median(values) / statistics.median(samples[metric])
        for name, samples in found.items()
        if name != OURS
        for metric, values in found[OURS].items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--clips", type=int, default=6)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--mode", default="reduce-overhead", help="of torch.compile")
    parser.add_argument("--against", choices=(EAGER, COMPILED), nargs="*", default=None)
    options = parser.parse_args()
    against = (EAGER, COMPILED) if options.against is None else options.against
    manifest = read_manifest(options.bundle)
    bundle_memory = Memory(torch.device(manifest.target.device_type))
    bundle = load(options.bundle)
    device, clock = bundle.device, Clock(bundle.device)
    session = session_of(bundle, svd_of(manifest), options.steps)
    spec = session.spec
    if against and (spec.fresh_noise or spec.cached):
        parser.error("diffusers' pipeline here is Euler without DeepCache: give --against no name")
    noise = block_noise(0, 0, spec.noise_shape[0], spec.noise_shape[1:]).to(device)
    pixels = np.random.default_rng(0).integers(0, 256, (*spec.video, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    ours = Ours(session, noise, image, clock)
    contestants: dict[str, Take] = {OURS: ours.take}
    latents = {OURS: ours.take()[0]}
    memory, first_s = {OURS: bundle_memory.added()}, {}
    for name in against:
        before = Memory(device)
        mode = options.mode if name == COMPILED else None
        pipe = pipeline(options.bundle, manifest, device, mode, clock)
        contestants[name] = Theirs(pipe, spec, noise, image, clock).take
        # Warm-up: it compiles in the first clip and captures graphs in the first steps.
        (latents[name], _), milliseconds = clock.time(contestants[name])
        first_s[name] = milliseconds / 1e3
        memory[name] = before.added()
    with torch.no_grad():
        found = measured(contestants, options.clips, latents)
    relative = {
        name: float((latents[OURS] - latents[name]).norm() / latents[name].float().norm())
        for name in against
    }
    own = ratios(found)
    document = {
        "schema": 1,
        "workload": {**workload(manifest), "steps": spec.steps},
        "clips": options.clips,
        **{f"svd_over_{name}": own[f"clip_ms_over_{name}"] for name in against},
        "ratios": own,
        "verdicts": {
            name: judge(found[OURS]["clip_ms"], found[name]["clip_ms"]).to_json()
            for name in against
        },
        "summaries": {
            name: {metric: plain(Summary.of(values)) for metric, values in samples.items()}
            for name, samples in found.items()
        },
        "memory": memory,
        "first_clip_s": first_s,
        "relative_l2_of_latents": relative,
        "finite": {name: bool(latent.isfinite().all()) for name, latent in latents.items()},
        "samples_ms": found,
        "gpu_state": gpu_state(device),
        "fingerprint": fingerprint(device, options.bundle),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
