"""Graphs whose upsampling is rewritten compute what they computed before, in ONNX Runtime."""

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from vidc.compiler.backends.onnxruntime.phases import use_phases

UPSAMPLING = {
    "mode": "nearest", "nearest_mode": "floor", "coordinate_transformation_mode": "asymmetric",
}  # fmt: skip
PLAIN = {
    "kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1], "dilations": [1, 1],
    "group": 1, "auto_pad": "NOTSET",
}  # fmt: skip
SCALES = (1.0, 1.0, 2.0, 2.0)


def graph(
    shape=(2, 3, 5, 4), hidden=4, outputs=3, scales=SCALES, dtype=np.float32, upsampling=UPSAMPLING,
    first=PLAIN, second=PLAIN, shown=(),
):  # fmt: skip
    """An upsampling and two convolutions; ``shown`` are results beside the last one's."""
    draw = np.random.default_rng(1).standard_normal
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    given = {
        "scales": np.array(scales, np.float32),
        "w1": draw((hidden, shape[1], 3, 3)).astype(dtype), "b1": draw(hidden).astype(dtype),
        "w2": draw((outputs, hidden, 3, 3)).astype(dtype), "b2": draw(outputs).astype(dtype),
    }  # fmt: skip
    nodes = [
        helper.make_node("Resize", ["x", "", "scales"], ["large"], **upsampling),
        helper.make_node("Conv", ["large", "w1", "b1"], ["c1"], **first),
        helper.make_node("Relu", ["c1"], ["relu"]),
        helper.make_node("Conv", ["relu", "w2", "b2"], ["frames"], **second),
    ]
    results = [helper.make_tensor_value_info(n, element, None) for n in ("frames", *shown)]
    made = helper.make_graph(
        nodes, "decoder", [helper.make_tensor_value_info("x", element, shape)], results,
        [numpy_helper.from_array(value, name) for name, value in given.items()],
    )  # fmt: skip
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)


def run(model, x):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(["frames"], {"x": x})[0]


@pytest.mark.parametrize("outputs", [1, 3, 4])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 3, 5, 4), (1, 24, 9, 16), (3, 16, 8, 1)])
def test_result_is_the_same_but_for_rounding(shape, outputs):
    before = graph(shape, outputs=outputs)
    model = ir.from_proto(before)
    assert use_phases(model) == 1
    operators = {node.op_type for node in model.graph}
    assert "Resize" not in operators
    assert "DepthToSpace" in operators
    x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    found, expected = run(ir.to_proto(model), x), run(before, x)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize(
    "changed",
    [
        {"outputs": 5},
        {"scales": (1.0, 1.0, 2.0, 3.0)},
        {"dtype": np.float16},
        {"upsampling": {**UPSAMPLING, "nearest_mode": "round_prefer_floor"}},
        {"first": {**PLAIN, "strides": [2, 2]}},
        {"second": {**PLAIN, "pads": [0, 0, 0, 0]}},
        {"shown": ("relu",)},
        {"shown": ("large",)},
    ],
    ids=str,
)
def test_other_graphs_stay_as_they_are(changed):
    before = graph(**changed)
    model = ir.from_proto(before)
    assert use_phases(model) == 0
    assert [n.op_type for n in model.graph] == ["Resize", "Conv", "Relu", "Conv"]
