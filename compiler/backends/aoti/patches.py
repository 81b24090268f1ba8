"""Convolutions of few pixels as matmuls of patches, for 16-bit programs on a GPU.

A patch is what the filter covers for one pixel of the result: h x w pixels with all channels. cuDNN
gives each multiprocessor a tile of about 128 pixels and 128 outputs. With few pixels, most
multiprocessors are idle; a matmul can split its sums among them.
"""

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional

from vidc.compiler.backends.aoti.convolution_forms import (
    Choose,
    Form,
    Sizes,
    by_rule,
    candidates,
)
from vidc.compiler.backends.aoti.phases import CONV2D_DEFAULTS
from vidc.exporters.lowering import expand

CONVOLUTION = torch.ops.aten.conv2d.default


def convolve_patches(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
) -> Tensor:
    """Returns the convolution of images as a matmul, ``[M, N, H', W']`` channels last.

    Args:
        x: ``[M, C, H, W]``.
        weight: ``[N, C, h, w]``; channels last, it is read as it is.
        bias: ``[N]``, or None.
        stride: vertical and horizontal.
        padding: vertical and horizontal, on both sides, with zeros.
        dilation: always 1.
        groups: always 1.
    """
    high, wide = _pair(padding)
    padded = functional.pad(x.movedim(1, -1), (0, 0, wide, wide, high, high))
    result = multiply_patches(padded, weight, _pair(stride))
    return (result if bias is None else result + bias).movedim(-1, 1)


def multiply_patches(padded: Tensor, weight: Tensor, stride: Sequence[int]) -> Tensor:
    """Returns the convolution ``[M, H', W', N]`` of padded images ``[M, H, W, C]``."""
    pixels = padded
    for axis, (size, step) in enumerate(zip(weight.shape[2:], stride, strict=True), 1):
        pixels = pixels.unfold(axis, size, step)
    patches = pixels.movedim(3, -1)  # [M, H', W', h, w, C]
    rows = torch.mm(patches.flatten(0, 2).flatten(1), weight.permute(0, 2, 3, 1).flatten(1).T)
    result: Tensor = rows.unflatten(0, patches.shape[:3])
    return result


def convolutions(program: ExportedProgram) -> frozenset[fx.Node]:
    """Returns a program's 2D convolutions."""
    return frozenset(program.graph.find_nodes(op="call_function", target=CONVOLUTION))


def use_patches(
    program: ExportedProgram, among: Collection[fx.Node], choose: Choose = by_rule
) -> None:
    """Rewrites convolutions of few pixels in 16 bits, in place.

    Args:
        program: an exported program.
        among: the convolutions to look at; those that other passes made are left out.
        choose: chooses the form of each.
    """

    def chosen(node: fx.Node) -> bool:
        sizes = _sizes(node) if node in among else None
        if sizes is None or Form.PATCHES not in candidates(sizes):
            return False
        return choose(sizes) is Form.PATCHES

    expand(program, CONVOLUTION, convolve_patches, chosen)


def _sizes(node: fx.Node) -> Sizes | None:
    """Returns the sizes of a convolution, or None for one that is left as it is."""
    given: list[Any] = [*node.args, *CONV2D_DEFAULTS[len(node.args) :]]
    x, weight, _, stride, padding, dilation, groups = given
    if node.kwargs or groups != 1 or any(each != 1 for each in dilation):
        return None
    if x.meta["val"].dim() != 4:
        return None  # One image without a batch.
    if node.meta["val"].dtype not in (torch.float16, torch.bfloat16):
        return None
    images, inputs, height, width = x.meta["val"].shape
    outputs, _, *kernel = weight.meta["val"].shape
    return Sizes(
        inputs, outputs, images, height, width,
        kernel=_pair(kernel), stride=_pair(stride), padding=_pair(padding),
    )  # fmt: skip


def _pair(sides: Sequence[int]) -> tuple[int, int]:
    """Returns the two values of a list of two, or of one that counts for both directions."""
    return sides[0], sides[-1]
