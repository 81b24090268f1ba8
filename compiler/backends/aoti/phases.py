"""3x3 convolutions of upsampled images as convolutions of the images, for float16 on a GPU.

Nearest upsampling by two repeats each pixel, so that a 3x3 filter covers only two different rows
and two different columns of the small image. Taps on the same pixel are summed to one. There are
four ways to sum them, the phases: by whether the row and the column of the result are even or odd.
The upsampled image is never written. The result is the same but for the rounding of the sums.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn import functional

from vidc.compiler.backends.aoti.convolution_forms import Choose, Form, Sizes, by_rule
from vidc.exporters.lowering import insert

aten = torch.ops.aten
CONV2D_DEFAULTS: tuple[Any, ...] = (None, None, None, (1, 1), (0, 0), (1, 1), 1)
"""Defaults of the arguments of ``conv2d``; None where there is none."""
_UPSAMPLINGS = (aten._upsample_nearest_exact2d.vec, aten.upsample_nearest2d.vec)
_PASSED = (aten.clone.default, aten._to_copy.default, aten.type_as.default)


def upsampled_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, together: bool) -> Tensor:
    """Returns the 3x3 convolution of an image that is upsampled by two, ``[M, N, 2 H, 2 W]``.

    Args:
        x: ``[M, C, H, W]``, before upsampling.
        weight: ``[N, C, 3, 3]``, for an image with one pixel of zeros around it.
        bias: ``[N]``, or None.
        together: True for one convolution that computes all four phases; False for two, one for
            even rows and one for odd rows.
    """
    return convolve_phases(x, phase_filters(weight, together), bias)


def phase_filters(weight: Tensor, together: bool) -> list[Tensor]:
    """Returns the filters of ``upsampled_convolution``: one ``[4 N, C, 3, 3]``, or two of rows."""
    columns = _with_three_taps(weight.float(), 3)
    if together:
        return [_with_three_taps(columns, 3).flatten(0, 2).to(weight.dtype)]
    return [each.flatten(0, 1).to(weight.dtype) for each in _with_two_taps(columns, 3)]


def convolve_phases(x: Tensor, filters: Sequence[Tensor], bias: Tensor | None) -> Tensor:
    """Returns the result of ``upsampled_convolution`` from the result of ``phase_filters``."""
    rows, convolved = x.shape[2], [functional.conv2d(x, each, padding=1) for each in filters]
    if len(convolved) == 1:
        phases = convolved[0].movedim(1, -1).unflatten(-1, (2, 2, -1)).transpose(2, 3)
    else:
        # The result has a row more, the first for phase 1 and the last for phase 0.
        of_rows = [each[:, :, phase : phase + rows] for phase, each in enumerate(convolved)]
        phases = torch.stack([each.movedim(1, -1) for each in of_rows], 2).unflatten(-1, (2, -1))
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


def use_phases(program: ExportedProgram, choose: Choose = by_rule) -> int:
    """Rewrites convolutions of images that are upsampled by two, in float16 and in place.

    Args:
        program: an exported program.
        choose: chooses the form of each.

    Returns:
        The number of rewritten convolutions.
    """
    count = 0
    for node in program.graph.find_nodes(op="call_function", target=aten.conv2d.default):
        x = _upsampled(node)
        if x is None:
            continue
        images, inputs, height, width = x.meta["val"].shape
        outputs = node.meta["val"].shape[1]
        form = choose(Sizes(inputs, outputs, images, height, width, upsampled=True))
        if form is Form.UPSAMPLED:
            continue
        together = form is Form.PHASES
        weight, bias = node.args[1], node.args[2] if len(node.args) > 2 else None

        def convolve(x: Tensor, weight: Tensor, *bias: Tensor, together: bool = together) -> Tensor:
            return upsampled_convolution(x, weight, bias[0] if bias else None, together)

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
    given: list[Any] = [*node.args, *CONV2D_DEFAULTS[len(node.args) :]]
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
