"""Forms in which a convolution in 16 bits runs on a GPU, and the rule that chooses one.

A form is a way to compute the convolution. All forms give the same result but for rounding.
Convolutions of videos and of upsampled images have several forms in float16, and one in bfloat16.
``winograd_convolution``, ``phases`` and ``patches`` have the arithmetic.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from vidc.compiler.backends.aoti.winograd_convolution import LEAST_CHANNELS
from vidc.plugins.ops.winograd_tiles import TILES

WIDE = 128
"""Number of output channels from which the rule prefers one convolution for all phases.

On an H100, one convolution takes 1.99 ms with 192 outputs and 3.79 ms with 96. Two convolutions,
one for each phase of rows, take 3.11 and 2.77 ms.
"""
MOST_PIXELS = 2048
"""Most pixels of a result for which a matmul of patches is measured.

On an H100 it is faster for up to 300 pixels, and in first convolutions, which have few inputs, for
up to 1,680.
"""
_TAPS = 36
"""Most taps of the four phases together, for each pair of an input and an output channel."""


class Form(StrEnum):
    """A way to compute a convolution.

    A 3x3x3 convolution runs as cuDNN's, or as Winograd's F(m, 3) in time. A 3x3 convolution of an
    image that nearest upsampling makes twice as large runs on the large image, or on the small one:
    as one convolution for all four phases, or as one for each phase of rows. A convolution of few
    pixels is cuDNN's too, or a matmul of patches.
    """

    DIRECT = "conv3d"
    F2 = "F(2, 3)"
    F3 = "F(3, 3)"
    F4 = "F(4, 3)"
    UPSAMPLED = "upsampled"
    PHASES = "phases"
    ROWS = "phases of rows"
    IMAGES = "conv2d"
    PATCHES = "matmul of patches"

    @property
    def tile(self) -> int | None:
        """m of F(m, 3), None for the other forms."""
        return next((tile for tile in TILES if _winograd(tile) is self), None)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a convolution, by which its form is chosen.

    Attributes:
        inputs: number of input channels.
        outputs: number of output channels.
        frames: frames of the result, of one video; the number of images if ``upsampled``, or with
            a ``kernel``.
        height: height of the input without padding, in pixels.
        width: width of the input without padding, in pixels.
        batch: number of videos.
        upsampled: True for a 3x3 convolution of images that are upsampled by two first.
        operator: True if ``norm_silu_winograd`` computes the transforms before and after it.
        kernel: height and width of the filter; None for 3x3x3 convolutions and for ``upsampled``.
        stride: vertical and horizontal; read only with ``kernel``.
        padding: vertical and horizontal, on both sides; read only with ``kernel``.
    """

    inputs: int
    outputs: int
    frames: int
    height: int
    width: int
    batch: int = 1
    upsampled: bool = False
    operator: bool = False
    kernel: tuple[int, int] | None = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    @property
    def pixels(self) -> int:
        """Number of the result's pixels in all images, of a convolution with a ``kernel``."""
        assert self.kernel is not None
        sides = zip((self.height, self.width), self.kernel, self.stride, self.padding, strict=True)
        high, wide = ((side + 2 * pad - size) // step + 1 for side, size, step, pad in sides)
        return self.frames * high * wide

    def __str__(self) -> str:
        text = f"{self.inputs} > {self.outputs}"
        size = f"{self.height}x{self.width}"
        if self.upsampled:
            return f"{text}, {self.frames} upsampled images of {size}"
        if self.kernel is not None:
            kernel, stride, padding = (
                "x".join(map(str, pair)) for pair in (self.kernel, self.stride, self.padding)
            )
            images = "1 image" if self.frames == 1 else f"{self.frames} images"
            return (
                f"{text}, {images} of {size}, filter {kernel}, stride {stride}, padding {padding}"
            )
        videos = "" if self.batch == 1 else f"{self.batch} times "
        apart = "" if self.operator else ", without operator"
        return f"{text}, {videos}{self.frames} frames of {size}{apart}"


Choose = Callable[[Sizes], Form]
"""Returns the form of a convolution, one of its ``candidates``."""


def candidates(sizes: Sizes) -> tuple[Form, ...]:
    """Returns the forms that a convolution has."""
    if sizes.upsampled:
        return (Form.UPSAMPLED, Form.PHASES, Form.ROWS)
    if sizes.kernel is not None:
        few = sizes.pixels <= MOST_PIXELS and math.prod(sizes.kernel) > 1
        return (Form.IMAGES, Form.PATCHES) if few else (Form.IMAGES,)
    if sizes.outputs < LEAST_CHANNELS and not sizes.operator:
        # The matmul of a narrow convolution reads frames that the operator wrote channels last.
        # On an H100, inductor's own transforms left other values in two of six of its inputs.
        return (Form.DIRECT,)
    return (Form.DIRECT, *(_winograd(tile) for tile in TILES if sizes.frames % tile == 0))


def by_rule(sizes: Sizes) -> Form:
    """Returns the form of a convolution that is not measured.

    For a 3x3x3 convolution it is F(m, 3) with the largest m that divides the frames. For upsampled
    images it is phases, because every call computes the phases' filters, only if the images have at
    least as many values as these: all phases at once from ``WIDE`` outputs on, else phases of rows.
    For few pixels it is cuDNN's convolution.
    """
    if sizes.kernel is not None:
        return Form.IMAGES
    if not sizes.upsampled:
        return candidates(sizes)[-1]
    if _TAPS * sizes.outputs > sizes.frames * sizes.height * sizes.width:
        return Form.UPSAMPLED
    return Form.PHASES if sizes.outputs >= WIDE else Form.ROWS


def _winograd(tile: int) -> Form:
    return Form(f"F({tile}, 3)")
