"""A residual block of Stable Video Diffusion in INT8: what ONNX Runtime computes of TensorRT's
graph, and what TensorRT-RTX builds of it."""

from dataclasses import replace

import onnxruntime
import pytest
import torch
from torch import nn

from vidc.compiler.backends.native_graph import write_graph
from vidc.compiler.backends.tensorrt.backend import TensorRtBackend
from vidc.compiler.config.recipe import LinearFormat
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.plan import inspect_plan
from vidc.compiler.quantize.linears import LinearSpec
from vidc.compiler.quantize.modules import QuantizedConv2d
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.component import Component
from vidc.exporters.onnx.quantized import convolution_as_matmul, convolution_for_tensorrt
from vidc.exporters.parts.spatio_temporal import SpatialResBlock
from vidc.exporters.program import export_program, save_program
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d
from vidc.plugins.signature import Role, Signature, TensorSpec

INPUTS, OUTPUTS, SIDE = 64, 128, 16
CONVOLUTIONS = ("conv1", "conv2")


class Block(nn.Module):
    """The block, its convolutions quantized with ranges that hold every value."""

    def __init__(self, dtype):
        super().__init__()
        self.unet = SpatialResBlock(INPUTS, OUTPUTS, None, 1e-6)
        drawn = torch.Generator().manual_seed(0)
        for weight in self.parameters():
            weight.data = torch.randn(weight.shape, generator=drawn) / weight[0].numel() ** 0.5
            weight.requires_grad_(False)
        self.to(dtype)
        for name in CONVOLUTIONS:
            self._quantize(name)

    def _quantize(self, name):
        layer, form = self.unet.get_submodule(name), LinearFormat("int8", "int8")
        quantized = QuantizedConv2d(layer, LinearSpec(name, form, name))
        rows = layer.weight.float().permute(0, 2, 3, 1).flatten(1)
        scale = rows.abs().amax(1) / 127
        stored = {
            "weight": (rows / scale[:, None]).round().to(torch.int8),
            "weight_scale": scale,
            "bias": layer.bias.data,
            "input_quantizer.scale": torch.tensor(8.0 / 127),
        }
        quantized.load_state_dict(stored, assign=True)
        self.unet.set_submodule(name, quantized)

    def forward(self, x):
        return (self.unet(x),)


def exported(dtype, folder):
    """The block as a component, with its weights and an input."""
    module, name = Block(dtype).eval(), str(dtype).removeprefix("torch.")
    x = TensorSpec("x", (2, INPUTS, SIDE, SIDE), name, Role.INPUT)
    y = TensorSpec("y", (2, OUTPUTS, SIDE, SIDE), name, Role.OUTPUT)
    component = Component("block", module, Signature((x, y)))
    made = ExportedComponent("block", folder, component.signature)
    save_program(export_program(component), made.program)
    values = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return module, made, values


@pytest.mark.parametrize("form", [convolution_for_tensorrt, convolution_as_matmul])
def test_graph_computes_what_the_modules_do(form, tmp_path):
    module, component, x = exported(torch.float32, tmp_path)
    (tmp_path / "graph").mkdir()
    graph = write_graph(
        component, "tensorrt_rtx", tmp_path / "graph", convolutions={quantized_conv2d: form}
    )
    assert graph.quantized == {f"unet.{name}.weight": True for name in CONVOLUTIONS}
    session = onnxruntime.InferenceSession(graph.path, providers=["CPUExecutionProvider"])
    given = {**module.state_dict(), "x": x}
    arguments = {each.name: given[each.name].numpy() for each in session.get_inputs()}
    (found,) = map(torch.from_numpy, session.run(None, arguments))
    (expected,) = module(x)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("gpu", "kernels"), [("t4", "gemm"), ("rtx4090", "correlation")])
def test_plan_computes_every_convolution_in_int8(gpu, kernels, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    _, component, _ = exported(torch.float16, tmp_path)
    target = replace(targets()[gpu], tensorrt="tensorrt_rtx")
    engine = TensorRtBackend().compile(component, target, {}, tmp_path / "output")
    assert engine.notes == ()
    found = inspect_plan(tmp_path / "output" / engine.files[0])
    assert found.plan.architectures == (f"sm{target.compute_capability.replace('.', '')}",)
    assert {each.weight for each in found.network.quantized} == {
        f"unet.{name}.weight" for name in CONVOLUTIONS
    }
    assert found.unfused == ()
    names = {each.name for each in found.network.quantized}
    assert names == {*found.plan.products}
    layers = [each for each in found.engine.layers if names & {*each.nodes}]
    assert {each.kind for each in layers} == {kernels}
    assert {tensor.dtype for each in layers for tensor in each.inputs[:2]} == {"int8"}
