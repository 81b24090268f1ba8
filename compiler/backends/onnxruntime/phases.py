"""Convolutions of upsampled images for a CPU, without the upsampled image.

Nearest upsampling by two makes four pixels, the phases, of each pixel. A 3x3 convolution of the
upsampled image reads only two rows and two columns of the small image, different ones for each
phase. So four 2x2 convolutions of the small image compute the four phases. A second 3x3 convolution
reads two rows and two columns of each phase: it is a sum of four 2x2 convolutions, one for each
phase that it reads. Their channels are the phases of the result, which DepthToSpace interleaves.
The result is the same but for the rounding of sums.

ONNX Runtime pads the channels of a convolution's result to 16, or 8 without AVX-512. So the last
convolution of a decoder, to three colors, gains most: its four phases have twelve channels.
"""

from collections.abc import Mapping
from itertools import product

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

Array = npt.NDArray[np.float32 | np.int64]

_BLOCK = 16
_PHASES = (*product((0, 1), repeat=2),)
"""Row and column of each phase."""
_INPUTS = 3
_OF_REPEATED = np.array([[[1, 0, 0], [0, 1, 1]], [[1, 1, 0], [0, 0, 1]]], np.float32)
"""For each phase of a result, the rows of a 3x3 kernel that read each of two repeated rows."""
_OF_PHASES = np.array(
    [[[[0, 1, 0], [0, 0, 0]], [[1, 0, 0], [0, 0, 1]]],
     [[[1, 0, 0], [0, 0, 1]], [[0, 0, 0], [0, 1, 0]]]], np.float32,
)  # fmt: skip
"""For each phase that is read, and each phase of a result, the rows of a 3x3 kernel that read each
of two rows of the phase that is read."""
_NEAREST = {
    "mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric",
}  # fmt: skip
_PLAIN = {
    "kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1),
    "group": 1, "auto_pad": "NOTSET",
}  # fmt: skip


def use_phases(model: ir.Model) -> int:
    """Rewrites upsampling with two float32 convolutions, and a ReLU between them, in place.

    Returns:
        The number of upsamplings that were rewritten.
    """
    places = [place for node in model.graph if (place := _place(node)) is not None]
    for place in places:
        _rewrite(model.graph, place)
    return len(places)


def _place(upsampling: ir.Node) -> list[ir.Node] | None:
    """Returns an upsampling and the three nodes after it, or None if they stay as they are."""
    if upsampling.op_type != "Resize" or not _doubles(upsampling):
        return None
    nodes = [upsampling]
    for operator in ("Conv", "Relu", "Conv"):
        (value,) = nodes[-1].outputs
        uses = value.uses()
        if value.is_graph_output() or len(uses) != 1 or uses[0].node.op_type != operator:
            return None
        nodes.append(uses[0].node)
    _, first, _, second = nodes
    fits = all(map(_is_plain, (first, second)))
    return nodes if fits and len(_PHASES) * _sizes(second.inputs[1])[0] <= _BLOCK else None


def _doubles(resize: ir.Node) -> bool:
    """Returns True for nearest upsampling of float32 images by two."""
    scales = resize.inputs[2].const_value if len(resize.inputs) == _INPUTS else None
    return (
        scales is not None
        and scales.numpy().tolist() == [1, 1, 2, 2]
        and _has(resize, _NEAREST)
        and resize.inputs[0].dtype == ir.DataType.FLOAT
    )


def _is_plain(convolution: ir.Node) -> bool:
    """Returns True for a 3x3 convolution with a bias, stride 1 and one pixel of padding."""
    return len(convolution.inputs) == _INPUTS and _has(convolution, _PLAIN)


def _has(node: ir.Node, attributes: Mapping[str, object]) -> bool:
    return all(
        name in node.attributes and node.attributes[name].value == value
        for name, value in attributes.items()
    )


def _sizes(value: ir.Value) -> tuple[int, ...]:
    assert value.shape is not None
    return tuple(value.shape.numpy())


def _rewrite(graph: ir.Graph, place: list[ir.Node]) -> None:
    upsampling, first, _, second = place
    tape, image = ir.tape.Tape(), upsampling.inputs[0]
    bias = tape.op("Concat", [second.inputs[2]] * len(_PHASES), {"axis": 0})
    total: ir.Value | None = None
    for row, column in _PHASES:
        kernel = _kernel(tape, first, _OF_REPEATED[[row]], _OF_REPEATED[[column]])
        pads = [1 - row, 1 - column, row, column]
        phase = tape.op("Conv", [image, kernel, first.inputs[2]], {"pads": pads})
        phase = tape.op("Relu", [phase])
        kernel = _kernel(tape, second, _OF_PHASES[row], _OF_PHASES[column])
        inputs = [phase, kernel, *([bias] if total is None else [])]
        share = tape.op("Conv", inputs, {"pads": [row, column, 1 - row, 1 - column]})
        total = share if total is None else tape.op("Add", [share, total])
    result = tape.op("DepthToSpace", [total], {"blocksize": 2, "mode": "DCR"})
    ir.convenience.replace_nodes_and_values(
        graph, second, place, tape.nodes, second.outputs, [result]
    )


def _kernel(tape: ir.tape.Tape, convolution: ir.Node, rows: Array, columns: Array) -> ir.Value:
    """Computes 2x2 kernels of a 3x3 convolution from its weight ``[N, C, 3, 3]``.

    ONNX Runtime computes them once, when it loads the graph.

    Args:
        tape: records the nodes.
        convolution: the 3x3 convolution.
        rows: share of each of its rows in the kernels' rows, ``[P, 2, 3]`` for P results.
        columns: the same for columns, ``[Q, 2, 3]``.

    Returns:
        Kernels ``[P Q N, C, 2, 2]``.
    """
    weight = convolution.inputs[1]
    assert weight is not None
    channels = _sizes(weight)[1]
    left = _constant(tape, rows[:, None, None, None])
    right = _constant(tape, columns.swapaxes(1, 2)[None, :, None, None])
    kernels = tape.op("MatMul", [tape.op("MatMul", [left, weight]), right])
    shape = _constant(tape, np.array([-1, channels, 2, 2]))
    return tape.op("Reshape", [kernels, shape])


def _constant(tape: ir.tape.Tape, values: Array) -> ir.Value:
    return tape.op("Constant", [], {"value": ir.tensor(values)})
