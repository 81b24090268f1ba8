"""Times of the forms of a convolution, measured on the GPU that a build compiles for.

The time of a form includes all operations whose cost depends on the form, as in a chain of
convolutions of that form:

- F(m, 3): ``norm_silu_winograd`` with m + 2 products, a residual and a kept sum, then the m + 2
  convolutions, or matmuls for few outputs. A copy of as many bytes stands for the kernels that
  inductor would compile: the transform of the filters, which the engine computes in every call, and
  the sum of the matmuls' nine results. Compiling these took 39 s for one size.
- conv3d: bias, residual, norm, SiLU, the concatenation with two earlier frames and the padding as
  inductor compiles them, then the convolution. They are left out if the convolution alone is
  already slower than another form.
- A convolution of upsampled images: upsampling, the convolutions, and the reordering of pixels. A
  copy stands for the transform of filters, as for F(m, 3).
- A convolution of few pixels: the convolution, or the copy of patches and the matmul. The operation
  before it writes its result with or without padding, which costs the same. Many convolutions run,
  each with a filter of its own, and the time is divided by their number. So filters of 4 MB and
  more come from memory, as in an engine; smaller ones may stay in the cache.

Values are float16. A convolution in bfloat16 is chosen by the times of float16.

Each form is captured as a CUDA graph. The graphs are replayed in turns, so that a drift of the
GPU's clock affects all forms alike.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes, candidates
from vidc.compiler.backends.aoti.patches import multiply_patches
from vidc.compiler.backends.aoti.phases import convolve_phases, phase_filters
from vidc.compiler.backends.aoti.winograd_convolution import (
    convolve_transformed,
    is_narrow,
    winograd_filters,
)
from vidc.plugins.ops.norm_silu_winograd import norm_silu_winograd
from vidc.runtime.weights import CHANNELS_LAST

SAMPLES, WARM_UP = 10, 3
_PADS = (1, 1, 1, 1)
_PRODUCTS = 6
_TAPS = 27
"""Number of taps of a 3x3x3 filter."""
_EPS = 1e-12
_CACHED = 2**27
"""More bytes than the cache of a GPU holds."""
_LEAST_FILTERS, _MOST_FILTERS = 4, 32
"""Limits of the number of filters for a convolution of few pixels."""
Work = Callable[[], Any]
"""Runs what is timed for one form."""


@dataclass(frozen=True)
class Times:
    """Times of a convolution's forms in milliseconds.

    Attributes:
        measured: time of each form.
        at_least: lower bounds for forms that were not measured whole, because their convolution
            alone takes longer than another form.
    """

    measured: Mapping[Form, float]
    at_least: Mapping[Form, float]


Sample = Callable[[Mapping[Form, Work]], Mapping[Form, float]]
"""Returns the milliseconds of each work."""


def measure_forms(sizes: Sizes, device: torch.device, sample: Sample | None = None) -> Times:
    """Measures the forms of a convolution on random values.

    Args:
        sizes: sizes of a convolution that is ``upsampled``, or has a ``kernel`` or ``operator``.
        device: a GPU.
        sample: measures works; by default ``sample_graphs``.

    Raises:
        torch.OutOfMemoryError: there is not enough free memory.
    """
    take = sample or sample_graphs
    with torch.no_grad():
        if sizes.upsampled:
            return Times(take(_of_images(sizes, device)), {})
        if sizes.kernel is not None:
            works, filters = _of_few_pixels(sizes, device)
            return Times({form: ms / filters for form, ms in take(works).items()}, {})
        link = _Link(sizes, device)
        tiles = [form for form in candidates(sizes) if form.tile is not None]
        alone = Form.DIRECT
        found = dict(take({alone: link.direct_alone(), **{f: link.winograd(f) for f in tiles}}))
        least = found.pop(alone)
        if least > min(found.values()):
            return Times(found, {alone: least})
        # All are measured again, in the same turns: the GPU's clock may have dropped since.
        whole = {alone: link.direct(), **{form: link.winograd(form) for form in tiles}}
        return Times(take(whole), {})


def sample_graphs(works: Mapping[Form, Work]) -> dict[Form, float]:
    """Returns the median time in ms of each work as a CUDA graph, in turns."""
    replays = _captured(works)
    taken: dict[Form, list[float]] = {form: [] for form in works}
    for turn in range(WARM_UP + SAMPLES):
        for form in works if turn % 2 else reversed(list(works)):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            replays[form]()
            last.record()
            last.synchronize()
            if turn >= WARM_UP:
                taken[form].append(first.elapsed_time(last))
    return {form: median(values) for form, values in taken.items()}


def _captured(works: Mapping[Form, Work]) -> dict[Form, Work]:
    """Returns replays of the works. They share memory, since no two run at once."""
    pool = torch.cuda.graph_pool_handle()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    replays: dict[Form, Work] = {}
    for form, work in works.items():
        with torch.cuda.stream(stream):
            work()  # Compiles, and loads the kernels.
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            work()
        replays[form] = graph.replay
    return replays


class _Link:
    """One convolution of a chain of equal ones, with the operations between two of them.

    Args:
        sizes: sizes of the convolution.
        device: device of the tensors.
    """

    def __init__(self, sizes: Sizes, device: torch.device) -> None:
        self.sizes = sizes
        self._draw = partial(_drawn, torch.Generator(device).manual_seed(1))
        self.pixels = (sizes.height, sizes.width, sizes.inputs)
        self.video = (sizes.batch, sizes.frames, *self.pixels)
        weight = self._draw(sizes.outputs, sizes.inputs, 3, 3, 3)
        self.weight = _channels_last(weight * (_TAPS * sizes.inputs) ** -0.5)
        self.bias, self.gamma = self._draw(sizes.inputs), self._draw(sizes.inputs)
        self.residual, self.past = self._draw(*self.video), self._draw(sizes.batch, 2, *self.pixels)
        # The products of F(2, 3) are the largest; those of other forms are a part of it.
        self._values = self._draw(2 * self.residual.numel())

    def winograd(self, form: Form) -> Work:
        """Returns the operator, and the convolutions of F(m, 3)."""
        tile, sizes = form.tile, self.sizes
        assert tile is not None
        tiles = sizes.batch * sizes.frames // tile
        shape = (tile + 2, tiles, *self.pixels)
        products = self._part(shape).unbind()
        missing = [None] * (_PRODUCTS - len(products))
        given = (*products, *missing, self.bias, self.residual, self.gamma, self.past, tile, True)

        def transformed() -> list[Tensor]:
            inputs = norm_silu_winograd(*given)[0]
            return [each.movedim(-1, 1) for each in inputs.unbind()]

        filters = [_channels_last(each) for each in winograd_filters(self.weight, tile)]
        copied = _copy_of(self.weight, *filters)
        if is_narrow(sizes.outputs, sizes.inputs):
            rows = [each.permute(2, 3, 0, 1).flatten(0, 2) for each in filters]

            def narrow() -> Any:
                copied()
                return [
                    torch.mm(row, frames.movedim(1, -1).flatten(0, -2).T)
                    for row, frames in zip(rows, transformed(), strict=True)
                ]

            results = narrow()
            # A sum reads all results and writes a ninth as many values.
            summed = _copy_of(*results, *(each[: sizes.outputs] for each in results))
            return lambda: (narrow(), summed())

        def work() -> Any:
            copied()
            return convolve_transformed(transformed(), filters, _PADS)

        return work

    def direct_alone(self) -> Work:
        """Returns the convolution without the operations between two of them."""
        batch, frames, height, width, channels = self.video
        padded = self._draw(batch, frames + 2, height, width, channels).movedim(-1, 1)
        return partial(functional.conv3d, padded, self.weight, padding=(0, 1, 1))

    def direct(self) -> Work:
        """Returns bias, residual, norm, SiLU, concatenation, padding and the convolution."""
        channels = self.sizes.inputs
        video, residual, past = (
            each.movedim(-1, 1) for each in (self._part(self.video), self.residual, self.past)
        )

        def between(video: Tensor, residual: Tensor, past: Tensor, *rest: Tensor) -> Any:
            bias, gamma, weight = rest
            total = video + bias.view(-1, 1, 1, 1) + residual
            normed = functional.normalize(total.float(), dim=1, eps=_EPS) * channels**0.5
            active = functional.silu(normed * gamma.view(-1, 1, 1, 1)).to(video.dtype)
            every = functional.pad(torch.cat([past, active], 2), (*_PADS, 0, 0))
            return functional.conv3d(every, weight), total, active[:, :, -2:].clone()

        given = (video, residual, past, self.bias, self.gamma, self.weight)
        return partial(_compiled(between, *given), *given)

    def _part(self, shape: Sequence[int]) -> Tensor:
        return self._values[: torch.Size(shape).numel()].view(*shape)


def _of_images(sizes: Sizes, device: torch.device) -> dict[Form, Work]:
    """Returns the forms of a convolution of upsampled images."""
    draw = partial(_drawn, torch.Generator(device).manual_seed(1))
    x = draw(sizes.frames, sizes.height, sizes.width, sizes.inputs).movedim(-1, 1)
    scale = (9 * sizes.inputs) ** -0.5
    weight = _channels_last(draw(sizes.outputs, sizes.inputs, 3, 3) * scale)

    def upsampled() -> Tensor:
        larger = functional.interpolate(x, scale_factor=2.0, mode="nearest-exact")
        return functional.conv2d(larger, weight, padding=1)

    def of_phases(together: bool) -> Work:
        filters = [_channels_last(each) for each in phase_filters(weight, together)]
        copied = _copy_of(weight, *filters)

        def work() -> Tensor:
            copied()
            return convolve_phases(x, filters, None)

        return work

    return {Form.UPSAMPLED: upsampled, Form.PHASES: of_phases(True), Form.ROWS: of_phases(False)}


def _of_few_pixels(sizes: Sizes, device: torch.device) -> tuple[dict[Form, Work], int]:
    """Returns works that convolve with several filters in turn, and the number of filters."""
    assert sizes.kernel is not None
    draw = partial(_drawn, torch.Generator(device).manual_seed(1))
    filter_shape = (sizes.outputs, sizes.inputs, *sizes.kernel)
    filter_bytes = 2 * math.prod(filter_shape)
    count = min(max(_CACHED // filter_bytes, _LEAST_FILTERS), _MOST_FILTERS)
    scale = math.prod(filter_shape[1:]) ** -0.5
    filters = [_channels_last(draw(*filter_shape) * scale) for _ in range(count)]
    x = draw(sizes.frames, sizes.height, sizes.width, sizes.inputs)
    high, wide = sizes.padding
    padded = functional.pad(x, (0, 0, wide, wide, high, high))

    def convolved() -> list[Tensor]:
        images = x.movedim(-1, 1)
        return [
            functional.conv2d(images, each, None, sizes.stride, sizes.padding) for each in filters
        ]

    def multiplied() -> list[Tensor]:
        return [multiply_patches(padded, each, sizes.stride) for each in filters]

    return {Form.IMAGES: convolved, Form.PATCHES: multiplied}, count


def _copy_of(*moved: Tensor) -> Work:
    """Returns a copy that reads and writes as many bytes as these tensors have."""
    source = moved[0].new_zeros(sum(each.numel() for each in moved) // 2)
    return partial(torch.empty_like(source).copy_, source)


def _compiled(function: Callable[..., Any], *given: Tensor) -> Callable[..., Any]:
    """Returns a function, for tensors like these, as inductor compiles it for a GPU."""
    traced = make_fx(function)(*given)
    return torch.compile(traced, dynamic=False) if given[0].is_cuda else traced


def _drawn(generator: torch.Generator, *shape: int) -> Tensor:
    """Draws float16 values. Zeros would draw less power and run faster."""
    values = torch.empty(shape, dtype=torch.float16, device=generator.device)
    return values.normal_(generator=generator)


def _channels_last(weight: Tensor) -> Tensor:
    return weight.contiguous(memory_format=CHANNELS_LAST[weight.dim()])
