"""Times the convolutions of the Wan VAE's decoder in each form, in turns, in float16.

    python benchmarks/convolutions.py > benchmarks/results/convolutions-h100.json
    python benchmarks/convolutions.py --small --samples 2    # a dry run, also without a GPU

Shapes are those of 12 frames of 480x832. A 3x3x3 convolution is cuDNN's 3D convolution, or the
products of F(m, 3), to which the operator between two convolutions is to be added. A convolution of
an upsampled image is that, or convolutions of the image. Each form is first held to float32 on a
corner: a form with a relative L2 above the limit ends the program.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from turns import Form, sampled

from vidc.compiler.backends.aoti.phases import upsampled_convolution
from vidc.compiler.backends.aoti.winograd_convolution import (
    convolution_inputs,
    convolution_output,
    is_narrow,
    winograd_products,
)
from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint
from vidc.compiler.bench.statistics import Summary
from vidc.plugins.ops.norm_silu_winograd import CHANNELS, norm_silu_winograd
from vidc.plugins.ops.winograd_tiles import TILES, filter_transform
from vidc.runtime.weights import CHANNELS_LAST

LIMIT = 3e-3
"""Relative L2 of a layer; F(4, 3) has 0.8e-3."""
CORNER = 16
"""Pixels of a side of the corner that is compared."""
Call = Callable[[], Any]


@dataclass(frozen=True)
class Layer:
    """A convolution of the decoder.

    Attributes:
        frames: of the result.
        height: of the input.
        width: of the input.
        inputs: channels.
        outputs: channels.
        calls: of a block.
        upsampled: True for a 3x3 convolution of images that are upsampled by two first.
    """

    frames: int
    height: int
    width: int
    inputs: int
    outputs: int
    calls: int
    upsampled: bool = False

    def small(self) -> "Layer":
        return Layer(self.frames, 5, 6, 32, min(self.outputs, 32), self.calls, self.upsampled)


LAYERS = {
    "384 > 384 at 60x104": Layer(3, 60, 104, 384, 384, 10),
    "192 > 384 at 120x208": Layer(6, 120, 208, 192, 384, 1),
    "384 > 384 at 120x208": Layer(6, 120, 208, 384, 384, 5),
    "192 > 192 at 240x416": Layer(12, 240, 416, 192, 192, 6),
    "96 > 96 at 480x832": Layer(12, 480, 832, 96, 96, 6),
    "96 > 3 at 480x832": Layer(12, 480, 832, 96, 3, 1),
    "384 > 192, 60x104 upsampled": Layer(6, 60, 104, 384, 192, 1, True),
    "384 > 192, 120x208 upsampled": Layer(12, 120, 208, 384, 192, 1, True),
    "192 > 96, 240x416 upsampled": Layer(12, 240, 416, 192, 96, 1, True),
}


class Forms:
    """The forms of a layer as calls, with their relative L2.

    Args:
        layer: sizes.
        device: where to compute.
    """

    def __init__(self, layer: Layer, device: torch.device) -> None:
        self.layer, self.device = layer, device
        self.generator = torch.Generator(device=device).manual_seed(1)
        self.calls: dict[str, Call] = {}
        self.errors: dict[str, float] = {}
        if layer.upsampled:
            self._of_images()
        else:
            self._of_videos()

    def _drawn(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Draws channels-last values."""
        drawn = torch.randn(shape, generator=self.generator, device=self.device) * scale
        return drawn.half().contiguous(memory_format=CHANNELS_LAST[len(shape)])

    def _compiled(self, function: Callable[..., Any], *given: Tensor) -> Call:
        """Returns a call with these arguments, on a GPU compiled as in an engine."""
        if self.device.type == "cuda":
            function = torch.compile(make_fx(function)(*given), dynamic=False)
        return partial(function, *given)

    def _add(self, name: str, call: Call, found: Tensor, wanted: Tensor) -> None:
        error = ((found.float() - wanted).norm() / wanted.norm()).item()
        if not error < LIMIT:
            sys.exit(f"{name} of {self.layer} has a relative L2 of {error:.2g}, above {LIMIT:g}")
        self.calls[name], self.errors[name] = call, error

    def _of_images(self) -> None:
        layer = self.layer
        x = self._drawn(layer.frames, layer.inputs, layer.height, layer.width)
        weight = self._drawn(layer.outputs, layer.inputs, 3, 3, scale=(9 * layer.inputs) ** -0.5)

        def upsample(x: Tensor) -> Tensor:
            return functional.interpolate(x, scale_factor=2.0, mode="nearest-exact")

        def plain(x: Tensor, weight: Tensor) -> Tensor:
            return functional.conv2d(upsample(x), weight, padding=1)

        corner = x[:1, :, : CORNER + 1, : CORNER + 1].float()
        side = slice(0, 2 * CORNER)  # The next row and column see the end of the corner.
        wanted = plain(corner, weight.float())[..., side, side]

        def by_phases(x: Tensor, weight: Tensor) -> Tensor:
            return upsampled_convolution(x, weight, None)

        for name, function in (("upsampled", plain), ("phases", by_phases)):
            call = self._compiled(function, x, weight)
            self._add(name, call, call()[:1, ..., side, side], wanted)

    def _of_videos(self) -> None:
        layer = self.layer
        shape = (1, layer.inputs, layer.frames + 2, layer.height, layer.width)
        x, scale = self._drawn(*shape), (27 * layer.inputs) ** -0.5
        weight = self._drawn(layer.outputs, layer.inputs, 3, 3, 3, scale=scale)
        corner = functional.pad(x[..., : CORNER + 1, : CORNER + 1].float(), (1, 0, 1, 0))
        wanted = functional.conv3d(corner, weight.float())
        height, width = wanted.shape[-2:]

        def cut(result: Tensor) -> Tensor:
            return result[..., :height, :width]

        direct = partial(functional.conv3d, x, weight, padding=(0, 1, 1))
        self._add("conv3d", direct, cut(direct()), wanted)
        for tile in (tile for tile in TILES if layer.frames % tile == 0):
            inputs = [
                each.contiguous(memory_format=torch.channels_last)
                for each in convolution_inputs(x.float(), tile)
            ]
            call = self._products([each.half() for each in inputs], weight, tile)
            found = convolution_output([each.float() for each in call()], None, 1)
            self._add(f"F({tile}, 3)", call, cut(found), wanted)
            self._operator(tile)

    def _products(self, inputs: list[Tensor], weight: Tensor, tile: int) -> Call:
        if is_narrow(*weight.shape[:2]):

            def multiply(weight: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
                return winograd_products(inputs, weight, (1, 1, 1, 1))

            return self._compiled(multiply, weight, *inputs)
        filters = [
            each.half().contiguous(memory_format=torch.channels_last)
            for each in filter_transform(weight.float().unbind(2), tile)
        ]

        def call() -> list[Tensor]:
            pairs = zip(inputs, filters, strict=True)
            return [functional.conv2d(each, kernel, padding=1) for each, kernel in pairs]

        return call

    def _operator(self, tile: int) -> None:
        """Adds the operator before such products, without and with a residual."""
        layer, channels = self.layer, self.layer.inputs
        if channels not in CHANNELS:
            return
        size = (layer.height, layer.width, channels)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=self.generator, device=self.device).half()

        m = [drawn(layer.frames // tile, *size) for _ in range(tile + 2)]
        m += [None] * (6 - len(m))  # type: ignore[list-item]
        gamma, past, residual = drawn(channels), drawn(1, 2, *size), drawn(1, layer.frames, *size)
        for name, added in (("operator", None), ("operator with residual", residual)):
            given = (*m, gamma, added, gamma, past, tile, added is not None)
            self.calls[f"{name} of F({tile}, 3)"] = partial(norm_silu_winograd, *given)


def rows_of(name: str, layer: Layer, samples: int, device: torch.device) -> dict[str, Any]:
    forms, clock = Forms(layer, device), Clock(device)
    timed = {key: Form(call, [()], clock) for key, call in forms.calls.items()}
    taken = sampled(timed, samples)
    rows = {
        key: {"samples_ms": values, "relative_l2": forms.errors.get(key)}
        for key, values in taken.items()
    }
    text = ", ".join(f"{key} {Summary.of(values).median:.3f} ms" for key, values in taken.items())
    print(f"{name}, {layer.calls} times: {text}", file=sys.stderr, flush=True)
    return {"layer": vars(layer), "forms": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = {}
    with torch.no_grad():
        for name, layer in LAYERS.items():
            chosen = layer.small() if given.small else layer
            rows[name] = rows_of(name, chosen, given.samples, device)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    print(json.dumps({"schema": 1, "fingerprint": fingerprint(device), "rows": rows}))


if __name__ == "__main__":
    main()
