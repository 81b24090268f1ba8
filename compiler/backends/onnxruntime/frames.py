"""Networks of video frames for a CPU: one convolution for each frame, not one for a batch of them.

ONNX Runtime stores channels of convolutions in blocks. Where a layer joins frames with the frames
before them, a batch leaves that layout, in which it can neither be shifted nor joined: every frame
is reordered and copied. With a node for each frame, the frame before is another value, and the
convolution of both is a sum of two. The result is the same but for the rounding of sums.
"""

from collections.abc import Callable, Iterable, Mapping
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir.passes import common

Frames = npt.NDArray[Any]
"""A tensor ``[..., C, h, w]``: by its leading axes, tuples of values ``[1, C', h, w]``.

The values of a tuple are equal parts of the channels, in order."""
Results = list[Frames] | None

_FRAME_AXES = 3
_TIME = 1
_SCALES = 2
"""Input position of Resize."""


def use_frames(model: ir.Model) -> int:
    """Rewrites a float32 network that joins frames with those before them, in place.

    Returns:
        The number of nodes that were rewritten.
    """
    if not any(map(_joins_past, model.graph)):
        return 0
    nodes = [*model.graph]
    rewriting = _Rewriting()
    done = [node for node in nodes if rewriting.rewrite(node)]
    values = [value for value in rewriting.frames if _is_needed(value, {*done})]
    wholes = [rewriting.whole(value) for value in values]
    ir.convenience.replace_nodes_and_values(
        model.graph, nodes[-1], done, rewriting.tape.nodes, values, wholes
    )
    model.graph.sort()
    common.RemoveUnusedNodesPass()(model)
    return len(done)


def _joins_past(node: ir.Node) -> bool:
    """Returns True for a Concat of the channels of a clip and of a shifted one, before a Conv."""
    reshapes = [use.node for use in node.outputs[0].uses()]
    return (
        _is_concat(node, _TIME + 1)
        and any(use.node.op_type == "Conv" for n in reshapes for use in n.outputs[0].uses())
        and node.outputs[0].dtype == ir.DataType.FLOAT
        and len(_sizes(node.outputs[0])) == _TIME + 1 + _FRAME_AXES
        and any(value is not None and _is_concat(value.producer(), _TIME) for value in node.inputs)
    )


def _is_concat(node: ir.Node | None, axis: int) -> bool:
    return (
        node is not None and node.op_type == "Concat" and node.attributes["axis"].as_int() == axis
    )


def _is_needed(value: ir.Value, done: set[ir.Node]) -> bool:
    """Returns True if the graph returns a value, or a node that stays reads it."""
    return value.is_graph_output() or any(
        use.node.graph is not None and use.node not in done for use in value.uses()
    )


class _Rewriting:
    """Frames of a graph's values, and the nodes that compute them.

    A method for an operator returns None if the node stays as it is.
    """

    def __init__(self) -> None:
        self.tape = ir.tape.Tape()
        self.frames: dict[ir.Value, Frames] = {}
        self._split: dict[tuple[ir.Value, int, int], list[ir.Value]] = {}

    def rewrite(self, node: ir.Node) -> bool:
        """Computes a node's results by frame; returns False if the node stays."""
        rule = _RULES.get(node.op_type)
        known = any(value in self.frames for value in node.inputs)
        results = rule(self, node) if rule and (known or _begins(node)) else None
        if results is None:
            return False
        for value, frames in zip(node.outputs, results, strict=True):
            self.frames[value] = frames
        return True

    def whole(self, value: ir.Value) -> ir.Value:
        """Computes a value from its frames."""
        frames = self.frames[value]
        parts = [
            each[0] if len(each) == 1 else self.tape.op("Concat", [*each], {"axis": 1})
            for each in frames.flat
        ]
        if len(parts) == frames.ndim == 1:
            return self.tape.op("Identity", parts)
        batch = self.tape.op("Concat", parts, {"axis": 0})
        return batch if frames.ndim == 1 else self._reshaped(batch, _sizes(value))

    def regroup(self, node: ir.Node) -> Results:
        """Reshape and Unsqueeze of leading axes."""
        (value, _), (result,) = node.inputs, node.outputs
        assert value is not None
        before, after = _sizes(value), _sizes(result)
        if len(after) <= _FRAME_AXES or before[-_FRAME_AXES:] != after[-_FRAME_AXES:]:
            return None
        return [self._of(value).reshape(after[:-_FRAME_AXES])]

    def concat(self, node: ir.Node) -> Results:
        """Concat along a leading axis, or of equal numbers of channels."""
        values = [value for value in node.inputs if value is not None]
        axis = node.attributes["axis"].as_int()
        shapes = {_sizes(value) for value in values}
        leading = {len(shape) - _FRAME_AXES for shape in shapes}
        if leading == {axis} and len(shapes) == 1:
            clips = [self._of(value) for value in values]
            return [np.frompyfunc(_joined, len(clips), 1)(*clips)] if _whole(*clips) else None
        if 0 <= axis < min(leading):
            return [np.concatenate([self._of(value) for value in values], axis)]
        return None

    def take(self, node: ir.Node) -> Results:
        """Slice, and Gather of one index, along a leading axis."""
        value, *others = node.inputs
        assert value is not None
        numbers = [_number(other) for other in others]
        frames = self._of(value)
        taken: int | slice | None
        if node.op_type == "Gather":
            (taken,), axis = numbers, node.attributes["axis"].as_int()
        elif None in numbers or len(numbers) != len(("start", "end", "axis", "step")):
            return None
        else:
            start, end, axis, step = numbers
            taken = slice(start, end, step)
        if taken is None or axis is None or not 0 <= axis < frames.ndim or frames.ndim == 1:
            return None
        return [frames[(slice(None),) * axis + (taken,)]]

    def split(self, node: ir.Node) -> Results:
        """Split of channels that a convolution has just made: a convolution for each part."""
        (value,), count = node.inputs, len(node.outputs)
        assert value is not None
        frames = self._of(value)
        sizes = {_sizes(result) for result in node.outputs}
        if node.attributes["axis"].as_int() != frames.ndim or len(sizes) > 1 or not _whole(frames):
            return None
        if count == 1:
            return [frames]
        parts = []
        for (frame,) in frames.flat:
            convolution = frame.producer()
            if convolution is None or convolution.op_type != "Conv":
                return None
            image, *weights = convolution.inputs
            kernels = zip(*(self._parts(each, count, 0) for each in weights), strict=True)
            parts.append(
                [self.tape.op("Conv", [image, *each], convolution.attributes) for each in kernels]
            )
        return [_frames(part, frames.shape) for part in zip(*parts, strict=True)]

    def convolve(self, node: ir.Node) -> Results:
        """Conv; of several parts of the channels, it is a sum of convolutions."""
        value, weight, *bias = node.inputs
        assert value is not None
        frames = self._of(value)
        (count,) = {len(parts) for parts in frames.flat}
        if frames.ndim != 1 or (count > 1 and node.attributes["group"].as_int() != 1):
            return None
        kernels = [weight] if count == 1 else self._parts(weight, count, 1)

        def convolved(parts: tuple[ir.Value, ...]) -> ir.Value:
            total = self.tape.op("Conv", [parts[0], kernels[0], *bias], node.attributes)
            for part, kernel in zip(parts[1:], kernels[1:], strict=True):
                share = self.tape.op("Conv", [part, kernel], node.attributes)
                total = self.tape.op("Add", [total, share])
            return total

        return [_frames(map(convolved, frames), frames.shape)]

    def alike(self, node: ir.Node) -> Results:
        """Relu, and Resize by scales."""
        value, *others = node.inputs
        assert value is not None
        frames = self._of(value)
        if len(others) > _SCALES or frames.ndim != 1 or not _whole(frames):
            return None
        made = [self.tape.op(node.op_type, [x, *others], node.attributes) for (x,) in frames]
        return [_frames(made, frames.shape)]

    def add(self, node: ir.Node) -> Results:
        """Add of two clips."""
        clips = [self.frames[v] for v in node.inputs if v is not None and v in self.frames]
        if len(clips) != len(node.inputs) or clips[0].shape != clips[1].shape or not _whole(*clips):
            return None
        pairs = zip(clips[0].flat, clips[1].flat, strict=True)
        made = [self.tape.op("Add", [x, y]) for (x,), (y,) in pairs]
        return [_frames(made, clips[0].shape)]

    def _of(self, value: ir.Value) -> Frames:
        """Returns a value's frames; splits one that the graph computes as a whole."""
        if value in self.frames:
            return self.frames[value]
        sizes = _sizes(value)
        count = prod(sizes[:-_FRAME_AXES])
        batch = self._reshaped(value, (count, *sizes[-_FRAME_AXES:]))
        frames = [batch] if count == 1 else self._parts(batch, count, 0)
        return _frames(frames, sizes[:-_FRAME_AXES])

    def _parts(self, value: ir.Value | None, count: int, axis: int) -> list[ir.Value]:
        """Splits a value, once for all frames that read its parts."""
        assert value is not None
        key = (value, count, axis)
        if key not in self._split:
            made = self.tape.op_multi_out(
                "Split", [value], {"axis": axis, "num_outputs": count}, num_outputs=count
            )
            self._split[key] = [*made]
        return self._split[key]

    def _reshaped(self, value: ir.Value, sizes: tuple[int, ...]) -> ir.Value:
        shape = self.tape.op("Constant", [], {"value": ir.tensor(np.array(sizes, np.int64))})
        return self.tape.op("Reshape", [value, shape])


_RULES: Mapping[str, Callable[[_Rewriting, ir.Node], Results]] = {
    "Reshape": _Rewriting.regroup,
    "Unsqueeze": _Rewriting.regroup,
    "Concat": _Rewriting.concat,
    "Slice": _Rewriting.take,
    "Gather": _Rewriting.take,
    "Split": _Rewriting.split,
    "Conv": _Rewriting.convolve,
    "Relu": _Rewriting.alike,
    "Resize": _Rewriting.alike,
    "Add": _Rewriting.add,
}


def _begins(node: ir.Node) -> bool:
    """Returns True for a Concat that joins, or a Reshape of a clip to a batch of its frames."""
    if node.op_type != "Reshape" or node.inputs[0] is None:
        return _joins_past(node)
    clip, frames = _sizes(node.inputs[0]), _sizes(node.outputs[0])
    return len(frames) == 1 + _FRAME_AXES and clip == (1, *frames)


def _frames(values: Iterable[ir.Value], shape: tuple[int, ...]) -> Frames:
    frames = np.empty(shape, object)
    for index, value in zip(np.ndindex(shape), values, strict=True):
        frames[index] = (value,)
    return frames


def _joined(*parts: tuple[ir.Value, ...]) -> tuple[ir.Value, ...]:
    return tuple(value for part in parts for value in part)


def _whole(*clips: Frames) -> bool:
    """Returns True if each frame of some clips is one value."""
    return all(len(parts) == 1 for clip in clips for parts in clip.flat)


def _number(value: ir.Value | None) -> int | None:
    found = None if value is None or value.const_value is None else value.const_value.numpy()
    return int(found.item()) if found is not None and found.size == 1 else None


def _sizes(value: ir.Value) -> tuple[int, ...]:
    return () if value.shape is None else tuple(value.shape.numpy())
