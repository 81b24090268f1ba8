"""Times the Wan VAE's decoder engine on a GPU: bf16, and fp16 by Winograd's algorithm.

    python benchmarks/vae_decode.py longlive-1.3b > vae-decode.json

Compiles ``vae_decode`` of a preset with random weights in each variant, in parallel. Writes JSON
to stdout: milliseconds of one call, the variants in turns; relative L2 and PSNR of the frames of
two blocks against float32; and the time of each kernel. The peak of the PSNR is the range of the
frames, which the decoder clamps to -1 and 1. Variant ``measured`` chooses forms of convolutions as
a build does; the output has them with their times.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.backends.aoti.convolution_choices import choices_json, engine_chooser
from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes, by_rule, candidates
from vidc.compiler.backends.aoti.cuda import for_cuda
from vidc.compiler.backends.aoti.inductor import compile_package, named_constants
from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.config.resolve import resolve
from vidc.compiler.validate.headroom import Activation, Headroom
from vidc.compiler.validate.metrics import compare, psnr
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.exporters.part import Part
from vidc.exporters.program import export_program
from vidc.plugins.ops.winograd_tiles import TILES
from vidc.runtime.weights import CHANNELS_LAST

COMPONENT, TURNS, WARM_UP = "vae_decode", 30, 3
RANGE = 2.0
"""Range of a decoded frame, from -1 to 1."""


@dataclass(frozen=True)
class Variant:
    """A way to compile the decoder.

    Attributes:
        precision: of weights and activations.
        fused: True to call fused operators.
        tiles: the values of m of Winograd's F(m, 3) that may be used.
        phases: True to convolve images before they are upsampled.
        measured: True to measure the forms of convolutions, as a build does.
    """

    precision: str = "fp16"
    fused: bool = True
    tiles: tuple[int, ...] = TILES
    phases: bool = True
    measured: bool = False

    def form(self, sizes: Sizes) -> Form:
        """The rule's form of those that may be used."""
        if sizes.upsampled:
            return by_rule(sizes) if self.phases else Form.UPSAMPLED
        return [f for f in candidates(sizes) if f.tile is None or f.tile in self.tiles][-1]


VARIANTS: Mapping[str, Variant] = {
    "bf16": Variant("bf16", fused=False),
    "fp16-winograd": Variant(fused=False),
    "fp16-winograd-fused": Variant(),
    "measured": Variant(measured=True),
    "upsampled": Variant(phases=False),
    "tiles-2": Variant(tiles=(2,), phases=False),
    "tiles-2-4": Variant(tiles=(2, 4), phases=False),
}


def part_of(preset: str) -> Part:
    part: Part = resolve(preset, environ={}).model.parts["vae"]
    return part


def weights_of(part: Part, dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: lazy.load().to(dtype) for name, lazy in part.random_weights(1).items()}


def compile_variant(preset: str, name: str, folder: Path) -> None:
    """Writes a variant's package, its constants, channels-last weights, and chosen forms."""
    variant, part = VARIANTS[name], part_of(preset)
    program = export_program(part.components(part.network(variant.precision))[COMPONENT])
    print(f"{name}: compiling", file=sys.stderr, flush=True)
    chooser, started = engine_chooser(variant.measured, None), time.perf_counter()
    choose = chooser if variant.measured else variant.form
    lowered = for_cuda(program, variant.fused, choose=choose)
    lowering = {"seconds": time.perf_counter() - started, **choices_json(chooser.choices)}
    (folder / f"{name}.lowering.json").write_text(json.dumps(lowering))
    save_file(named_constants(lowered.program), folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(lowered.channels_last))
    compile_package(lowered.program, folder / f"{name}.pt2")
    print(f"{name}: compiled", file=sys.stderr, flush=True)


@dataclass
class Decoder:
    """A variant's engine with its weights and states on the GPU."""

    engine: Any
    states: list[Tensor]
    weights: dict[str, Tensor]

    @classmethod
    def of(cls, part: Part, name: str, folder: Path) -> "Decoder":
        dtype = PRECISIONS[VARIANTS[name].precision]
        component = part.components(part.network(VARIANTS[name].precision))[COMPONENT]
        engine = torch._inductor.aoti_load_package(str(folder / f"{name}.pt2"))
        last = json.loads((folder / f"{name}.json").read_text())
        drawn = {f"vae.{key}": value for key, value in weights_of(part, dtype).items()}
        drawn |= load_file(folder / f"{name}.safetensors")
        given = {}
        for key in engine.get_constant_fqns():
            value = drawn[key].cuda()
            form = CHANNELS_LAST[value.dim()] if key in last else torch.contiguous_format
            given[key] = value.contiguous(memory_format=form)
        engine.load_constants(given, check_full_update=True, user_managed=True)
        return cls(engine, states_of(component, dtype), given)

    def __call__(self, latent: Tensor) -> Tensor:
        result = self.engine(latent, *self.states)
        frames: Tensor = result[0] if isinstance(result, list | tuple) else result
        return frames


def states_of(component: Any, dtype: torch.dtype) -> list[Tensor]:
    shapes = [state.shape for state in component.signature.states]
    return [torch.zeros(shape, dtype=dtype, device="cuda") for shape in shapes]


@torch.inference_mode()
def float32_frames(part: Part, latents: list[Tensor]) -> tuple[list[Tensor], Activation]:
    """Frames of PyTorch in float32, and the largest activation."""
    weights = {name: value.cuda() for name, value in weights_of(part, torch.float32).items()}
    component = part.components(with_weights(part.network("fp32"), weights))[COMPONENT]
    states, headroom = states_of(component, torch.float32), Headroom([component.module])
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        frames = [component.module(latent, *states)[0].cpu() for latent in latents]
    return frames, headroom.largest()


def errors_of(found: list[Tensor], wanted: list[Tensor]) -> dict[str, list[float]]:
    """Relative L2 and PSNR of each block's frames against float32.

    Args:
        found: frames of an engine, from -1 to 1.
        wanted: the same of float32.
    """
    pairs = list(zip(found, wanted, strict=True))
    return {
        "relative_l2": [compare(*pair).relative_l2 for pair in pairs],
        "psnr_db": [psnr(*pair, peak=RANGE) for pair in pairs],
    }


def kernels(decoder: Decoder, latent: Tensor) -> list[tuple[str, int, float]]:
    """Name, calls and milliseconds of each kernel, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        decoder(latent)
        torch.cuda.synchronize()
    found = [(e.key, e.count, e.device_time_total / 1e3) for e in profiled.key_averages()]
    return sorted(found, key=lambda each: -each[2])


def measure(part: Part, names: list[str], folder: Path) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(3)
    shape = part.latent_shape  # type: ignore[attr-defined]
    latents = [torch.randn(shape, generator=generator).cuda() for _ in range(2)]
    wanted, largest = float32_frames(part, latents)
    print(f"largest activation: {largest}", file=sys.stderr, flush=True)
    clock = Clock(torch.device("cuda"))
    torch.cuda.empty_cache()
    decoders = {name: Decoder.of(part, name, folder) for name in names}
    rows: dict[str, Any] = {}
    for name, decoder in decoders.items():
        found = [decoder(latent).cpu() for latent in latents]
        rows[name] = errors_of(found, wanted) | {"samples_ms": []}
        rows[name]["largest_activation"] = largest.value
        for _ in range(WARM_UP):
            decoder(latents[1])
        rows[name]["lowering"] = json.loads((folder / f"{name}.lowering.json").read_text())
        rows[name]["kernels_ms"] = kernels(decoder, latents[1])[:30]
        errors = {key: rows[name][key] for key in ("relative_l2", "psnr_db")}
        print(f"{name}: {errors}", file=sys.stderr, flush=True)
    for _ in range(TURNS):
        for name, decoder in decoders.items():
            rows[name]["samples_ms"].append(clock.time(lambda d=decoder: d(latents[1]))[1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="longlive-1.3b")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    given = parser.parse_args()
    preset, names = given.preset, given.variants
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device: the engines are for a GPU")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with ProcessPoolExecutor(len(names), get_context("spawn")) as pool:
            jobs = [pool.submit(compile_variant, preset, variant, folder) for variant in names]
            for job in jobs:
                job.result()
        rows = measure(part_of(preset), names, folder)
    mark = fingerprint(torch.device("cuda"))
    print(json.dumps({"schema": 1, "preset": preset, "fingerprint": mark, "runs": [rows]}))


if __name__ == "__main__":
    main()
