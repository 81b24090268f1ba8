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
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from packages import compiled, constants_of, kernels, write_package
from torch import Tensor

from vidc.compiler.backends.aoti.convolution_choices import choices_json, engine_chooser
from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes, by_rule, candidates
from vidc.compiler.backends.aoti.cuda import for_cuda
from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.config.resolve import resolve
from vidc.compiler.validate.headroom import Activation, Headroom
from vidc.compiler.validate.metrics import compare, psnr
from vidc.exporters.models import PRECISIONS, with_weights
from vidc.exporters.part import Part
from vidc.exporters.program import export_program
from vidc.plugins.ops.winograd_tiles import TILES

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
    write_package(lowered, folder, name)
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
        drawn = {f"vae.{key}": value for key, value in weights_of(part, dtype).items()}
        given = constants_of(engine.get_constant_fqns(), folder, name, drawn.__getitem__)
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
        rows[name]["kernels_ms"] = kernels(partial(decoder, latents[1]))[:30]
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
    with compiled(partial(compile_variant, preset), names) as folder:
        rows = measure(part_of(preset), names, folder)
    mark = fingerprint(torch.device("cuda"))
    print(json.dumps({"schema": 1, "preset": preset, "fingerprint": mark, "runs": [rows]}))


if __name__ == "__main__":
    main()
