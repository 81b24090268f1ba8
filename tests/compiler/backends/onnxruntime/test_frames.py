"""Networks of frames that are rewritten compute what they computed before, in ONNX Runtime."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper, shape_inference

from vidc.compiler.backends.onnxruntime.frames import use_frames

TIME, CHANNELS, HEIGHT, WIDTH = 3, 2, 4, 5
CLIP = (1, TIME, CHANNELS, HEIGHT, WIDTH)
MEMORY = (1, *CLIP[2:])
INPUTS = {"x": CLIP, "before": MEMORY}
PADDED = {"pads": [1, 1, 1, 1], "group": 1}


def constants(dtype):
    draw = np.random.default_rng(1).standard_normal
    weights = {
        "w1": draw((CHANNELS, 2 * CHANNELS, 3, 3)), "b1": draw(CHANNELS),
        "w2": draw((2 * CHANNELS, CHANNELS, 1, 1)), "b2": draw(2 * CHANNELS),
    }  # fmt: skip
    shapes = {
        "pairs_shape": (TIME, 2 * CHANNELS, HEIGHT, WIDTH), "batch_shape": CLIP[1:],
        "clip_shape": CLIP,
        "grown_shape": (2 * TIME, *CLIP[2:]), "large_shape": (1, 2 * TIME, CHANNELS, 8, 10),
    }  # fmt: skip
    numbers = {"zero": [0], "one": [1], "last": [-1]}
    return (
        {name: value.astype(dtype) for name, value in weights.items()}
        | {name: np.array(value, np.int64) for name, value in (shapes | numbers).items()}
        | {"index": np.array(-1), "scales": np.array([1, 1, 2, 2], np.float32)}
    )


def graph(dtype=np.float32, joins=True, reader="Conv", shown=()):
    """A layer that joins frames with those before, and twice as many frames of twice the size.

    ``shown`` are results beside the network's.
    """
    element, node = helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), helper.make_node
    past = [
        node("Unsqueeze", ["before", "zero"], ["before5"]),
        node("Slice", ["clip", "zero", "last", "one", "one"], ["head"]),
        node("Concat", ["before5", "head"], ["past"], axis=1),
    ]
    nodes = [
        node("Reshape", ["x", "batch_shape"], ["flat"]),
        node("Relu", ["flat"], ["positive"]),
        node("Reshape", ["positive", "clip_shape"], ["clip"]),
        *(past if joins else []),
        node("Gather", ["clip", "index"], ["after"], axis=1),
        node("Concat", ["clip", "past" if joins else "clip"], ["pairs5"], axis=2),
        node("Reshape", ["pairs5", "pairs_shape"], ["pairs"]),
        *([node("Neg", ["pairs"], ["negative"])] if reader == "Neg" else []),
        node("Conv", ["pairs" if reader == "Conv" else "negative", "w1", "b1"], ["c1"], **PADDED),
        node("Reshape", ["clip", "batch_shape"], ["batch"]),
        node("Add", ["c1", "batch"], ["sum"]),
        node("Relu", ["sum"], ["relu"]),
        node("Conv", ["relu", "w2", "b2"], ["grown"], group=1),
        node("Unsqueeze", ["grown", "one"], ["grown5"]),
        node("Split", ["grown5"], ["even", "odd"], axis=2, num_outputs=2),
        node("Concat", ["even", "odd"], ["grid"], axis=1),
        node("Reshape", ["grid", "grown_shape"], ["small"]),
        node("Resize", ["small", "", "scales"], ["large"], mode="nearest"),
        node("Reshape", ["large", "large_shape"], ["large5"]),
        node("Sigmoid", ["large5"], ["frames"]),
    ]
    made = helper.make_graph(
        nodes, "decoder",
        [helper.make_tensor_value_info(n, element, s) for n, s in INPUTS.items()],
        [helper.make_tensor_value_info(n, element, None) for n in ("frames", "after", *shown)],
        [numpy_helper.from_array(value, name) for name, value in constants(dtype).items()],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    return shape_inference.infer_shapes(model, data_prop=True)


def run(model):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    draw = np.random.default_rng(2).standard_normal
    feeds = {name: draw(shape).astype(np.float32) for name, shape in INPUTS.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize("shown", [(), ("relu",), ("grid", "c1"), ("past", "pairs5")], ids=str)
def test_frames_are_computed_one_by_one_with_the_same_results(shown):
    before = graph(shown=shown)
    model = ir.from_proto(before)
    assert use_frames(model) > 0
    found, expected = run(ir.to_proto(model)), run(before)
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=0, atol=2e-6 * np.abs(values).max())


def test_each_frame_has_its_own_convolutions():
    model = ir.from_proto(graph())
    assert use_frames(model) > 0
    operators = Counter(node.op_type for node in model.graph)
    # A frame's pair takes two, and so do the two frames that are made of it.
    assert (operators["Conv"], operators["Resize"], operators["Concat"]) == (4 * TIME, 2 * TIME, 1)


@pytest.mark.parametrize(
    "changed", [{"joins": False}, {"dtype": np.float16}, {"reader": "Neg"}], ids=str
)
def test_other_graphs_stay_as_they_are(changed):
    before = graph(**changed)
    model = ir.from_proto(before)
    assert use_frames(model) == 0
    assert [n.op_type for n in model.graph] == [n.op_type for n in before.graph.node]
