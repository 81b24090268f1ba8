"""INT8 convolutions in networks and plans of TensorRT-RTX: the form depends on the GPU."""

from dataclasses import replace

import onnx_ir as ir
import pytest
import torch
from torch import nn
from torch.nn import functional as F

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends.native_graph import Graph
from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.built_layers import built_layers
from vidc.compiler.backends.tensorrt.network import parse
from vidc.compiler.backends.tensorrt.plan import eight_bit_matmuls
from vidc.compiler.backends.tensorrt.product import PRODUCTS, convolution_form
from vidc.compiler.backends.tensorrt.quantized import QuantizedMatmul, quantized_matmuls
from vidc.compiler.config.targets import targets
from vidc.exporters.onnx.quantized import convolution_as_matmul, convolution_for_tensorrt
from vidc.exporters.onnx.simplify import simplify
from vidc.exporters.tracing import tracing
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d
from vidc.plugins.signature import Signature

RTX, ENTERPRISE = PRODUCTS["tensorrt_rtx"], PRODUCTS["tensorrt"]
RTX4090 = targets()["rtx4090"]
T4 = replace(targets()["t4"], tensorrt="tensorrt_rtx")
WEIGHT = "net.weight"
CHANNELS, OUTPUTS = 64, 128
PLACES = {
    "3x3": ([3, 3], [1, 1], [1, 1]),
    "strided": ([3, 3], [2, 2], [1, 1]),
    "1x1": ([1, 1], [1, 1], [0, 0]),
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=[*PLACES])


class Convolution(nn.Module):
    """A quantized convolution between activations; its tensors are inputs of the network."""

    def __init__(self, form, place):
        super().__init__()
        self.form, self.place = form, place

    def forward(self, x, *tensors):
        return F.silu(self.form(F.silu(x), *tensors, *self.place))


def graph(form, place, folder, expected=True):
    kernel, _, _ = place
    given = {
        WEIGHT: torch.zeros(OUTPUTS, kernel[0] * kernel[1] * CHANNELS, dtype=torch.int8),
        "net.weight_scale": torch.ones(OUTPUTS),
        "net.bias": torch.zeros(OUTPUTS, dtype=torch.float16),
        "net.input_quantizer.scale": torch.ones(()),
    }
    x = torch.zeros(2, CHANNELS, 32, 32, dtype=torch.float16)
    with tracing():
        made = torch.onnx.export(
            Convolution(form, place).eval(), (x, *given.values()), input_names=["x", *given],
            output_names=["y"], opset_version=24, optimize=False, verbose=False,
        )  # fmt: skip
    simplify(made.model)
    ir.save(made.model, folder / "toy.onnx")
    return Graph(folder / "toy.onnx", Signature(()), frozenset(), {WEIGHT: expected})


def built(form, place, target, folder):
    """The only quantized layer of the network, the plan's 8-bit layers and its layers."""
    network = parse("toy", graph(form, place, folder), RTX)
    (found,) = quantized_matmuls(RTX.module(), network.definition)
    assert found == QuantizedMatmul(found.name, WEIGHT, "int8", "int8", True)
    plan = build_plan("toy", network, RTX, target)
    return found.name, eight_bit_matmuls(plan), built_layers(plan, network.log, RTX)


def chosen(target):
    (form,) = convolution_form(RTX, target, ()).values()
    return form


@places
@pytest.mark.parametrize(
    ("target", "kind"), [(RTX4090, "correlation"), (T4, "gemm")], ids=["sm89", "sm75"]
)
def test_chosen_form_is_computed_in_int8(place, target, kind, tmp_path):
    name, products, layers = built(chosen(target), place, target, tmp_path)
    assert products == (name,)
    (layer,) = (each for each in layers.layers if name in each.nodes)
    assert (layer.kind, [tensor.dtype for tensor in layer.inputs[:2]]) == (kind, ["int8", "int8"])
    assert layers.in_8_bits(name)


@pytest.mark.deep
@pytest.mark.parametrize("capability", sorted(RTX.int8_convolutions - {"8.9"}))
def test_every_listed_gpu_has_int8_convolutions(capability, tmp_path):
    target = replace(RTX4090, compute_capability=capability)
    form = chosen(target)
    assert form is convolution_for_tensorrt
    name, products, _ = built(form, PLACES["3x3"], target, tmp_path)
    assert products == (name,)


def test_turing_has_no_int8_convolution(tmp_path):
    """The reason for matmuls of patches: Q/DQ around a convolution do not fuse there."""
    name, products, layers = built(convolution_for_tensorrt, PLACES["3x3"], T4, tmp_path)
    assert products == ()
    (layer,) = (each for each in layers.layers if name in each.nodes)
    assert [tensor.dtype for tensor in layer.inputs[:2]] == ["half", "half"]
    assert not layers.in_8_bits(name)


@pytest.mark.parametrize(
    ("product", "target", "capabilities", "form"),
    [
        (RTX, RTX4090, (), convolution_for_tensorrt),
        (RTX, T4, (), convolution_as_matmul),
        (RTX, RTX4090, ("8.6", "8.9", "12.0"), convolution_for_tensorrt),
        (RTX, RTX4090, ("7.5", "8.9"), convolution_as_matmul),
        (ENTERPRISE, targets()["t4"], (), convolution_as_matmul),
        (ENTERPRISE, targets()["h100"], (), convolution_as_matmul),
    ],
)
def test_form_is_one_for_all_capabilities_of_a_plan(product, target, capabilities, form):
    assert convolution_form(product, target, capabilities) == {quantized_conv2d: form}


@pytest.mark.parametrize("form", [convolution_for_tensorrt, convolution_as_matmul])
def test_rejects_network_with_another_quantized_convolution(form, tmp_path):
    with pytest.raises(BuildError, match=r"1 weights and 0 inputs.*1 weights and 1.*net\.weight"):
        parse("toy", graph(form, PLACES["3x3"], tmp_path, expected=False), RTX)
