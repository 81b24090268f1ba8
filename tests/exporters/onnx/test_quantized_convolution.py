"""ONNX forms of ``vidc::quantized_conv2d``, run by ONNX Runtime."""

from collections import Counter

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

from vidc.exporters.onnx.quantized import (
    UNIT,
    convolution_as_matmul,
    convolution_for_onnxruntime,
    convolution_for_tensorrt,
)
from vidc.exporters.onnx.simplify import simplify
from vidc.exporters.tracing import tracing
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d

DRAWN = torch.Generator().manual_seed(0)


class Convolution(nn.Module):
    """A form with weights as constants, as ONNX Runtime knows them in a session."""

    def __init__(self, form, kernel, stride, padding, dtype=torch.float32):
        super().__init__()
        self.form, self.place = form, (kernel, stride, padding)
        columns = kernel[0] * kernel[1] * 8
        drawn = torch.randint(-127, 128, (16, columns), generator=DRAWN, dtype=torch.int8)
        self.register_buffer("weight", drawn)
        self.register_buffer("weight_scale", torch.rand(16, generator=DRAWN) / 100)
        self.register_buffer("bias", torch.randn(16, generator=DRAWN).to(dtype))
        self.register_buffer("scale", torch.tensor(3 / 127))

    def arguments(self, x):
        return x, self.weight, self.weight_scale, self.bias, self.scale, *self.place

    def forward(self, x):
        return self.form(*self.arguments(x))


def exported(module, x, path):
    """The module's graph, in a file too."""
    with tracing():
        made = torch.onnx.export(
            module.eval(), (x,), opset_version=24, optimize=False, verbose=False,
            input_names=["x"], output_names=["y"],
        )  # fmt: skip
    simplify(made.model)
    ir.save(made.model, path)
    return made.model


def session(module, x, folder):
    """The module in ONNX Runtime, and the node types of its optimized graph."""
    exported(module, x, folder / "convolution.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    loaded = onnxruntime.InferenceSession(
        folder / "convolution.onnx", options, providers=["CPUExecutionProvider"]
    )
    nodes = onnx.load(folder / "optimized.onnx").graph.node
    return loaded, Counter(node.op_type for node in nodes)


places = pytest.mark.parametrize(
    "place",
    [((3, 3), (1, 1), (1, 1)), ((3, 3), (2, 2), (1, 1)), ((1, 1), (1, 1), (0, 0))],
    ids=["3x3", "strided", "1x1"],
)


@places
def test_is_one_quantized_matmul(place, tmp_path):
    module = Convolution(convolution_for_onnxruntime, *place)
    x = torch.randn(2, 8, 9, 12, generator=DRAWN)
    loaded, kinds = session(module, x, tmp_path)
    assert kinds["QGemm"] == kinds["QuantizeLinear"] == 1
    assert kinds["DequantizeLinear"] == kinds["Gemm"] == kinds["Conv"] == 0
    (found,) = map(torch.from_numpy, loaded.run(None, {"x": x.numpy()}))
    expected = quantized_conv2d(*module.arguments(x))
    assert found.shape == expected.shape
    # QuantizeLinear of unsigned values reaches -128, which the operator's range leaves out.
    assert float((found - expected).abs().max()) < 2e-2 * float(expected.abs().max())
    inside = x.clamp(-2.9, 2.9)
    (found,) = map(torch.from_numpy, loaded.run(None, {"x": inside.numpy()}))
    torch.testing.assert_close(
        found, quantized_conv2d(*module.arguments(inside)), rtol=1e-5, atol=1e-4
    )


@places
@pytest.mark.parametrize(
    ("form", "operator"), [(convolution_for_tensorrt, "Conv"), (convolution_as_matmul, "Gemm")]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float16, 2e-3)])
def test_tensorrt_form_matches_the_operator(place, form, operator, dtype, tolerance, tmp_path):
    module = Convolution(form, *place, dtype)
    # QuantizeLinear reaches -128, which the operator's range leaves out.
    x = torch.randn(2, 8, 9, 12, generator=DRAWN).clamp(-2.9, 2.9).to(dtype)
    graph = exported(module, x, tmp_path / "convolution.onnx").graph
    kinds = Counter(node.op_type for node in graph)
    assert (kinds["QuantizeLinear"], kinds["DequantizeLinear"], kinds[operator]) == (1, 2, 1)
    assert kinds["Conv"] + kinds["Gemm"] + kinds["MatMul"] == 1
    scales = {
        float(node.inputs[1].const_value.numpy())
        for node in graph
        if node.op_type in ("QuantizeLinear", "DequantizeLinear")
    }
    assert scales == {UNIT[torch.int8]}
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    loaded = onnxruntime.InferenceSession(
        tmp_path / "convolution.onnx", options, providers=["CPUExecutionProvider"]
    )
    (found,) = map(torch.from_numpy, loaded.run(None, {"x": x.numpy()}))
    expected = quantized_conv2d(*module.arguments(x))
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    assert float((found - expected).abs().max()) < tolerance * float(expected.abs().max())
