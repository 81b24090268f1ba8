"""Pads of bfloat16, which ONNX Runtime has no kernel for."""

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest

from vidc.exporters.onnx.lint import lint
from vidc.exporters.onnx.pad import widen_pads

GRAPH = """<ir_version: 10, opset_import: ["" : 24]>
graph (float[2, 3] x, int64[4] pads) => (float[{rows}, {columns}] y, bfloat16[{rows}, {columns}] z)
  <float wide = {{2.5}}>
{{
  fill = Cast<to = 16>(wide)
  narrow = Cast<to = 16>(x)
  z = Pad<mode = "{mode}">({inputs})
  y = Cast<to = 1>(z)
}}"""


@pytest.mark.parametrize(
    ("mode", "inputs", "expected"),
    [
        ("constant", "narrow, pads", {"constant_values": 0}),
        ("constant", "narrow, pads, fill", {"constant_values": 2.5}),
        ("edge", "narrow, pads", {}),
    ],
)
def test_padding_in_float32_gives_equal_results(mode, inputs, expected):
    text = GRAPH.format(mode=mode, inputs=inputs, rows=4, columns=6)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    assert [finding.construct.code for finding in lint(model, "onnxruntime_cuda")] == ["pad-bf16"]
    widen_pads(model)
    assert not lint(model, "onnxruntime_cuda")
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    assert model.graph.outputs[1].dtype is ir.DataType.BFLOAT16
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    x = np.array([[1.0, -2.0, 0.5], [3.0, 0.25, -8.0]], np.float32)
    (found,) = session.run(["y"], {"x": x, "pads": np.array([1, 2, 1, 1])})
    np.testing.assert_array_equal(found, np.pad(x, ((1, 1), (2, 1)), mode=mode, **expected))
