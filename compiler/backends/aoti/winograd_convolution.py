"""A convolution over three frames by Winograd's F(m, 3) in time.

m frames of the result take m + 2 two-dimensional convolutions of combinations of frames, whose
results are called products, instead of 3 m convolutions of frames. The result is that of the
convolution but for rounding. Shapes have K groups of m frames, called tiles.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from vidc.plugins.ops.winograd_tiles import (
    filter_transform,
    input_transform,
    output_transform,
)

LEAST_CHANNELS = 32
"""Least input channels of a rewritten convolution; least output channels, unless it is narrow."""
_TAPS = 9
"""Positions of a 3x3 filter."""


def is_narrow(outputs: int, inputs: int) -> bool:
    """Returns True if ``_sum_of_taps`` computes a convolution with these numbers of channels.

    The results of its nine taps are then together no larger than the input.
    """
    return outputs < LEAST_CHANNELS and _TAPS * outputs <= inputs


def convolution_inputs(x: Tensor, tile: int) -> tuple[Tensor, ...]:
    """Transforms the input of a convolution: ``tile + 2`` tensors ``[B K, C, H, W]``.

    Args:
        x: ``[B, C, tile K + 2, H, W]``.
        tile: m of F(m, 3).
    """
    frames, length = x.transpose(1, 2), x.shape[2] - 2
    parts = input_transform([frames[:, i : i + length : tile] for i in range(tile + 2)])
    return tuple(part.flatten(0, 1) for part in parts)


def winograd_products(
    frames: Sequence[Tensor], weight: Tensor, pads: Sequence[int]
) -> tuple[Tensor, ...]:
    """Convolves each transformed input in two dimensions with a transformed filter.

    Args:
        frames: m + 2 transformed inputs, each ``[M, C, H, W]``.
        weight: weight of the three-dimensional convolution, ``[N, C, 3, 3, 3]``.
        pads: zeros on the left, right, top and bottom.

    Returns:
        m + 2 products, each ``[M, N, H, W]``.
    """
    return convolve_transformed(frames, winograd_filters(weight, len(frames) - 2), pads)


def winograd_filters(weight: Tensor, tile: int) -> list[Tensor]:
    """Transforms the weight of a convolution: ``tile + 2`` filters ``[N, C, 3, 3]``.

    Args:
        weight: ``[N, C, 3, 3, 3]``.
        tile: m of F(m, 3).
    """
    return [each.to(weight.dtype) for each in filter_transform(weight.float().unbind(2), tile)]


def convolve_transformed(
    frames: Sequence[Tensor], filters: Sequence[Tensor], pads: Sequence[int]
) -> tuple[Tensor, ...]:
    """Returns the result of ``winograd_products`` from the result of ``winograd_filters``."""
    if is_narrow(*filters[0].shape[:2]):
        return tuple(_sum_of_taps(*each, pads) for each in zip(frames, filters, strict=True))
    left, right, top, bottom = pads
    if left == right and top == bottom:
        padding = (top, left)
    else:
        frames, padding = [functional.pad(each, (*pads,)) for each in frames], (0, 0)
    return tuple(
        functional.conv2d(each, kernel, padding=padding)
        for each, kernel in zip(frames, filters, strict=True)
    )


def _sum_of_taps(x: Tensor, kernel: Tensor, pads: Sequence[int]) -> Tensor:
    """Computes a 3x3 convolution as one matmul for all taps and a sum of nine shifted results.

    cuDNN has no fast kernel for a few outputs. The matmul reads each pixel once, not nine times.

    Args:
        x: ``[M, C, H, W]``, channels last in memory.
        kernel: ``[N, C, 3, 3]``.
        pads: zeros on the left, right, top and bottom.
    """
    left, right, top, bottom = pads
    pixels = x.movedim(1, -1)
    rows = kernel.permute(2, 3, 0, 1).flatten(0, 2)
    each = torch.mm(rows, pixels.reshape(-1, pixels.shape[-1]).T)
    each = each.view(3, 3, len(kernel), *pixels.shape[:-1])
    total: Tensor | None = None
    for i in range(3):
        for j in range(3):
            shift = (left - j, right + j - 2, top - i, bottom + i - 2)
            shifted = functional.pad(each[i, j].float(), shift)
            total = shifted if total is None else total + shifted
    assert total is not None
    return total.to(x.dtype).movedim(0, 1)


def convolution_output(products: Sequence[Tensor], bias: Tensor | None, batch: int) -> Tensor:
    """Returns a convolution's result, ``[B, N, T, H, W]``, from its products.

    Args:
        products: m + 2 products, each ``[B K, N, H, W]``.
        bias: ``[N]``, or None.
        batch: B.
    """
    frames = torch.stack(output_transform(products), 1)
    result: Tensor = frames.unflatten(0, (batch, -1)).flatten(1, 2).transpose(1, 2)
    return result if bias is None else result + bias.view(-1, 1, 1, 1)
