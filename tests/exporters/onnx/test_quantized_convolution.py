"""ONNX Runtime's form of ``vidc::quantized_conv2d``: what it fuses and computes."""

from collections import Counter

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from torch import nn

from vidc.exporters.onnx.quantized import convolution_for_onnxruntime
from vidc.exporters.onnx.simplify import simplify
from vidc.exporters.tracing import tracing
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d

DRAWN = torch.Generator().manual_seed(0)


class Convolution(nn.Module):
    """The form with weights as constants, as ONNX Runtime knows them in a session."""

    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.place = (kernel, stride, padding)
        columns = kernel[0] * kernel[1] * 8
        drawn = torch.randint(-127, 128, (16, columns), generator=DRAWN, dtype=torch.int8)
        self.register_buffer("weight", drawn)
        self.register_buffer("weight_scale", torch.rand(16, generator=DRAWN) / 100)
        self.register_buffer("bias", torch.randn(16, generator=DRAWN))
        self.register_buffer("scale", torch.tensor(3 / 127))

    def arguments(self, x):
        return x, self.weight, self.weight_scale, self.bias, self.scale, *self.place

    def forward(self, x):
        return convolution_for_onnxruntime(*self.arguments(x))


def session(module, x, folder):
    """The module in ONNX Runtime, and the node types of its optimized graph."""
    with tracing():
        made = torch.onnx.export(
            module.eval(), (x,), opset_version=24, optimize=False, verbose=False,
            input_names=["x"], output_names=["y"],
        )  # fmt: skip
    simplify(made.model)
    ir.save(made.model, folder / "convolution.onnx")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    loaded = onnxruntime.InferenceSession(
        folder / "convolution.onnx", options, providers=["CPUExecutionProvider"]
    )
    nodes = onnx.load(folder / "optimized.onnx").graph.node
    return loaded, Counter(node.op_type for node in nodes)


@pytest.mark.parametrize(
    "place",
    [((3, 3), (1, 1), (1, 1)), ((3, 3), (2, 2), (1, 1)), ((1, 1), (1, 1), (0, 0))],
    ids=["3x3", "strided", "1x1"],
)
def test_is_one_quantized_matmul(place, tmp_path):
    module, x = Convolution(*place), torch.randn(2, 8, 9, 12, generator=DRAWN)
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
