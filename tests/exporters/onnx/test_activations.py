"""Activations that ONNX Runtime's CUDA kernels would round more than once."""

import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch.nn import functional as F

from vidc.exporters.onnx.activations import widen_activations

GRAPH = """<ir_version: 10, opset_import: ["" : 24]>
graph (float[4, 1024] x) => (float[4, 1024] y)
{{
  narrow = Cast<to = {dtype}>(x)
  {activation}
  y = Cast<to = 1>(z)
}}"""
GELU = 'z = Gelu<approximate = "tanh">(narrow)'
SILU = "gate = Sigmoid(narrow) z = Mul(narrow, gate)"
GATE_FIRST = "gate = Sigmoid(narrow) z = Mul(gate, narrow)"
EXPECTED = {GELU: lambda x: F.gelu(x, approximate="tanh"), SILU: F.silu, GATE_FIRST: F.silu}
OTHERS = [
    "z = Gelu(narrow)",
    "twice = Add(narrow, narrow) gate = Sigmoid(twice) z = Mul(narrow, gate)",
]
NUMBERS = {torch.bfloat16: 16, torch.float16: 10, torch.float32: 1}


def parsed(activation, dtype):
    text = GRAPH.format(activation=activation, dtype=NUMBERS[dtype])
    return ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))


def kinds(model):
    return [node.op_type for node in model.graph]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("activation", EXPECTED)
def test_activation_rounds_once(activation, dtype):
    model = parsed(activation, dtype)
    computing = kinds(model)[1:-1]
    widen_activations(model)
    assert kinds(model) == ["Cast", "Cast", *computing, "Cast", "Cast"]
    session = onnxruntime.InferenceSession(ir.to_proto(model).SerializeToString())
    x = torch.linspace(-6, 6, 4096).reshape(4, 1024)
    found = torch.from_numpy(session.run(["y"], {"x": x.numpy()})[0])
    exact = EXPECTED[activation](x.to(dtype).double())
    # Half a unit in the last place; ONNX Runtime's tanh on a CPU is an approximation.
    torch.testing.assert_close(found.double(), exact, rtol=0.51 * torch.finfo(dtype).eps, atol=2e-6)


@pytest.mark.parametrize(
    ("activation", "dtype"),
    [*((known, torch.float32) for known in EXPECTED), *((it, torch.bfloat16) for it in OTHERS)],
)
def test_other_operators_stay_unchanged(activation, dtype):
    model = parsed(activation, dtype)
    before = kinds(model)
    widen_activations(model)
    assert kinds(model) == before
