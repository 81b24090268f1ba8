"""3x3 convolutions of upsampled images as convolutions of the images, for float16 on a GPU.

Nearest upsampling by two repeats each pixel, so that a result reads two different rows and columns,
not three: sums of taps, in one of four ways (phases). The upsampled image is never written. The
result is the same but for the rounding of the sums.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional

from vidc.exporters.lowering import insert

aten = torch.ops.aten
_UPSAMPLINGS = (aten._upsample_nearest_exact2d.vec, aten.upsample_nearest2d.vec)
_PASSED = (aten.clone.default, aten._to_copy.default, aten.type_as.default)
_WIDE = 128
"""Outputs from which one convolution for all phases is faster than one for each phase of rows.

On an H100, one takes 1.99 ms with 192 outputs and 3.79 ms with 96; two take 3.11 and 2.77 ms.
"""
_TAPS = 36
"""Taps of all phases at most, for each input and output."""


def are_worthwhile(pixels: int, outputs: int) -> bool:
    """Returns True if images are larger than the filters that every call computes.

    Args:
        pixels: of all images before upsampling.
        outputs: channels of the result.
    """
    return _TAPS * outputs <= pixels


def upsampled_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, together: bool | None = None
) -> Tensor:
    """Returns the 3x3 convolution of an image that is upsampled by two, ``[M, N, 2 H, 2 W]``.

    Args:
        x: ``[M, C, H, W]``, before upsampling.
        weight: ``[N, C, 3, 3]``, for an image with one pixel of zeros around it.
        bias: ``[N]``, or None.
        together: True for one convolution of all phases, False for one of each phase of rows; None
            chooses the faster one.
    """
    rows, outputs = x.shape[2], len(weight)
    if outputs >= _WIDE if together is None else together:
        columns = _with_three_taps(weight.float(), 3)
        kernel = _with_three_taps(columns, 3).flatten(0, 2).to(weight.dtype)
        phases = functional.conv2d(x, kernel, padding=1)
        phases = phases.movedim(1, -1).unflatten(-1, (2, 2, outputs)).transpose(2, 3)
    else:
        # The result has a row more, the first for phase 1 and the last for phase 0.
        both = [
            functional.conv2d(x, kernel.flatten(0, 1).to(weight.dtype), padding=1)
            for kernel in _with_two_taps(_with_three_taps(weight.float(), 3), 3)
        ]
        of_rows = [each[:, :, phase : phase + rows] for phase, each in enumerate(both)]
        phases = torch.stack([each.movedim(1, -1) for each in of_rows], 2)
        phases = phases.unflatten(-1, (2, outputs))
    # [M, H, 2, W, 2, N]
    result: Tensor = phases.flatten(3, 4).flatten(1, 2)
    return (result if bias is None else result + bias).movedim(-1, 1)


def _with_two_taps(weight: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Returns the taps of both phases: on a pixel and the one before it, or the one after it."""
    first, second, third = weight.unbind(dim)
    return torch.stack([first, second + third], dim), torch.stack([first + second, third], dim)


def _with_three_taps(weight: Tensor, dim: int) -> Tensor:
    """Returns the taps of both phases, with zeros where a phase has none, ``[2, ...]``."""
    before, after = _with_two_taps(weight, dim)
    zeros = torch.zeros_like(before.narrow(dim, 0, 1))
    return torch.stack([torch.cat([before, zeros], dim), torch.cat([zeros, after], dim)])


def use_phases(
    program: ExportedProgram, worthwhile: Callable[[int, int], bool] = are_worthwhile
) -> int:
    """Rewrites convolutions of images that are upsampled by two, in float16 and in place.

    Args:
        program: an exported program.
        worthwhile: like ``are_worthwhile``; other convolutions are left as they are.

    Returns:
        The number of rewritten convolutions.
    """
    count = 0
    for node in program.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        x = _upsampled(node)
        if x is None:
            continue
        images, _, height, width = x.meta["val"].shape
        if not worthwhile(images * height * width, node.meta["val"].shape[1]):
            continue
        weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None

        def convolve(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
            return upsampled_convolution(x, weight, *(bias or (None,)))

        with program.graph.inserting_before(node):
            given = [x, weight] if bias is None else [x, weight, bias]
            result = insert(program.graph, convolve, given)
        node.replace_all_uses_with(result)
        program.graph.erase_node(node)
        count += 1
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return count


def _upsampled(node: fx.Node) -> fx.Node | None:
    """Returns the image before upsampling, or None for a convolution that is left as it is."""
    given: list[Any] = [*node.args, *_DEFAULTS[len(node.args) :]]
    x, weight, _, stride, padding, dilation, groups = given
    if (
        node.meta["val"].dtype is not torch.float16
        or tuple(weight.meta["val"].shape[2:]) != (3, 3)
        or groups != 1
        or any(each != 1 for each in (*stride, *padding, *dilation))
    ):
        return None
    while x.target in _PASSED:
        x = x.args[0]
    if x.target not in _UPSAMPLINGS or x.args[1] is not None or list(x.args[2]) != [2.0, 2.0]:
        return None
    source: Any = x.args[0]
    while source.meta["val"].dtype is not torch.float16 and source.target in _PASSED:
        source = source.args[0]
    return source if source.meta["val"].dtype is torch.float16 else None


_DEFAULTS: tuple[Any, ...] = (None, None, None, (1, 1), (0, 0), (1, 1), 1)
"""Defaults of the arguments of ``conv2d``; None where there is none."""
