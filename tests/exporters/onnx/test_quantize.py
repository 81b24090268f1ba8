"""A graph of Linears in 8 bits: what ONNX Runtime makes of it, and what is refused."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from onnx import TensorProto, helper
from safetensors.torch import save_file

from vidc.exporters.checkpoint.write import weight_layout
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.onnx.quantize import found_gemms, quantize, unsigned_inputs
from vidc.exporters.onnx.weights import external
from vidc.plugins.errors import BuildError
from vidc.runtime.engines.integer_products import ask_exact_products

ROWS, WIDTH = 12, 16
FORMS = {"int8": (torch.int8, 127.0), "fp8": (torch.float8_e4m3fn, 448.0)}


def tensors_of(layer, activations=True, smooth=False, center=False):
    return LinearTensors(
        f"net.{layer}.weight",
        f"net.{layer}.weight_scale",
        "net.a.input_scale" if activations else None,
        "net.a.input_factor" if smooth else None,
        "net.a.input_mean" if center else None,
    )


@pytest.fixture
def make(tmp_path):
    """Two Linears of one input, or of two, and their tensors in a weights file."""
    drawn = torch.Generator().manual_seed(0)
    (tmp_path / "weights").mkdir()

    def graph(inputs=("x", "x")):
        nodes = [
            helper.make_node(
                "Gemm", [source, f"net.{n}.weight", f"net.{n}.bias"], [f"y.{n}"], f"linear.{n}",
                transB=1,
            )
            for n, source in zip("ab", inputs, strict=True)
        ]  # fmt: skip
        kind = TensorProto.FLOAT
        made = helper.make_graph(
            nodes,
            "component",
            [helper.make_tensor_value_info(n, kind, [ROWS, WIDTH]) for n in dict.fromkeys(inputs)],
            [helper.make_tensor_value_info(f"y.{n}", kind, [ROWS, WIDTH]) for n in "ab"],
            [
                helper.make_tensor(f"net.{n}.{part}", kind, shape, np.zeros(shape).ravel())
                for n in "ab"
                for part, shape in (("weight", [WIDTH, WIDTH]), ("bias", [WIDTH]))
            ],
        )
        opsets = [helper.make_opsetid("", 24)]
        return ir.from_proto(helper.make_model(made, opset_imports=opsets, ir_version=10))

    def stored(form, amax, smooth):
        dtype, largest = FORMS[form]
        found, exact = {}, {}
        factor = torch.rand(WIDTH, generator=drawn) + 0.5 if smooth else torch.ones(WIDTH)
        for n in "ab":
            weight = torch.randn(WIDTH, WIDTH, generator=drawn)
            scale = (weight / factor).abs().amax(1) / largest
            steps = weight / factor / scale[:, None]
            found[f"{n}.weight"] = (steps.round() if form == "int8" else steps).to(dtype)
            found[f"{n}.weight_scale"] = scale
            found[f"{n}.bias"] = torch.randn(WIDTH, generator=drawn)
            exact[n] = weight, found[f"{n}.bias"]
        found["a.input_scale"] = torch.tensor(amax / largest)
        found["a.input_factor"] = factor
        found["a.input_mean"] = torch.randn(WIDTH, generator=drawn)
        save_file(found, tmp_path / "weights" / "net.safetensors")
        # A file of safetensors' own order: what refers to it is read back from it.
        return found, exact

    def session(model, found):
        from vidc.exporters.checkpoint.lazy import LazyTensor
        from vidc.exporters.checkpoint.write import write_weights

        lazy = {name: LazyTensor.of(tensor) for name, tensor in found.items()}
        write_weights(tmp_path / "weights" / "net.safetensors", lazy)
        ir.save(model, tmp_path / "graph.onnx")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        ask_exact_products(options)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        opened = onnxruntime.InferenceSession(
            str(tmp_path / "graph.onnx"), options, providers=["CPUExecutionProvider"]
        )
        graph = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph
        return opened, Counter(node.op_type for node in graph.node)

    return graph, stored, session


def external_tensors(found):
    layout = weight_layout(found)
    return {f"net.{key}": external(f"net.{key}", "net", place) for key, place in layout.items()}


@pytest.mark.parametrize("smooth", [False, True])
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_onnxruntime_runs_the_quantized_matmul(make, form, smooth, center):
    graph, stored, session = make
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    found, exact = stored(form, float(x.abs().max()) * 1.5, smooth)
    model = graph()
    asked = [tensors_of(n, smooth=smooth, center=center) for n in "ab"]
    quantize(model, asked, external_tensors(found))
    assert found_gemms(model) == asked
    # As the backend does: signed inputs that Linears share take ONNX Runtime ten times as long.
    assert unsigned_inputs(model) == (form == "int8")
    opened, nodes = session(model, found)
    # Linears that share an input quantize it once; INT8 becomes a product of integers.
    assert nodes["QuantizeLinear"] == 1
    assert (nodes["QGemm"], nodes["Gemm"]) == ((2, 0) if form == "int8" else (0, 2))
    dtype, largest = FORMS[form]
    given = x + found["a.input_mean"] if center else x
    steps = x * found["a.input_factor"] / found["a.input_scale"]
    steps = steps.round().clamp(-128, largest) if form == "int8" else steps.to(dtype)
    values = opened.run(["y.a", "y.b"], {"x": given.numpy()})
    for n, value in zip("ab", values, strict=True):
        weight = found[f"{n}.weight"].double() * found[f"{n}.weight_scale"].double()[:, None]
        product = steps.double() * found["a.input_scale"].double() @ weight.T
        expected = product + found[f"{n}.bias"].double()
        torch.testing.assert_close(torch.from_numpy(value).double(), expected, rtol=1e-5, atol=1e-5)
        original, bias = exact[n]
        true = x @ original.T + bias
        assert (torch.from_numpy(value) - true).norm() < 0.1 * true.norm()


@pytest.mark.parametrize("form", FORMS)
def test_weights_alone_leave_the_input(make, form):
    graph, stored, session = make
    found, exact = stored(form, 1.0, False)
    model = graph()
    quantize(model, [tensors_of(n, False) for n in "ab"], external_tensors(found))
    opened, nodes = session(model, found)
    assert nodes["QuantizeLinear"] == 0
    x = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
    (value,) = opened.run(["y.a"], {"x": x.numpy()})
    weight = found["a.weight"].float() * found["a.weight_scale"][:, None]
    torch.testing.assert_close(
        torch.from_numpy(value), x @ weight.T + exact["a"][1], rtol=1e-4, atol=1e-4
    )


def test_finds_the_quantized_linears(make):
    graph, stored, _ = make
    found, _ = stored("int8", 1.0, True)
    asked = [tensors_of("a", smooth=True), tensors_of("b", smooth=True)]
    model = graph()
    quantize(model, asked, external_tensors(found))
    assert found_gemms(model) == asked
    # A layer that was left out is not there.
    model = graph()
    quantize(model, asked[:1], external_tensors(found))
    assert found_gemms(model) == asked[:1]


def test_linears_of_two_inputs_share_no_scale(make):
    graph, stored, _ = make
    found, _ = stored("int8", 1.0, False)
    with pytest.raises(BuildError, match=r"component: net\.b\.weight shares net\.a\.input_scale"):
        quantize(graph(("x", "z")), [tensors_of(n) for n in "ab"], external_tensors(found))


def test_a_weight_that_something_else_reads_is_refused_by_name(make):
    graph, stored, _ = make
    found, _ = stored("int8", 1.0, False)
    model = graph()
    weight = model.graph.initializers["net.b.weight"]
    model.graph.append(ir.node("Relu", [weight]))
    with pytest.raises(BuildError, match=r"component: net\.b\.weight .* Gemm, Relu instead of one"):
        quantize(model, [tensors_of(n) for n in "ab"], external_tensors(found))


@pytest.mark.parametrize("bias", ["none", "shared"])
def test_a_bias_that_cannot_make_up_for_a_mean_is_refused(make, bias):
    graph, stored, _ = make
    found, _ = stored("int8", 1.0, False)
    model = graph()
    gemm = next(node for node in model.graph if node.name == "linear.b")
    gemm.replace_input_with(2, None if bias == "none" else model.graph[0].inputs[2])
    asked = [tensors_of(n, center=True) for n in "ab"]
    layer = "b" if bias == "none" else "a"
    with pytest.raises(
        BuildError, match=rf"component: net\.{layer}\.weight has no bias of its own"
    ):
        quantize(model, asked, external_tensors(found))


def test_a_mean_that_is_not_taken_off_is_found(make):
    graph, stored, _ = make
    found, _ = stored("fp8", 1.0, True)
    asked = [tensors_of(n, smooth=True, center=True) for n in "ab"]
    model = graph()
    quantize(model, asked, external_tensors(found))
    sub = next(node for node in model.graph if node.op_type == "Sub")
    sub.outputs[0].replace_all_uses_with(sub.inputs[0])
    assert found_gemms(model) == [replace(each, input_mean=None) for each in asked]


def test_an_input_that_is_dequantized_by_another_scale_is_refused(make):
    graph, stored, _ = make
    found, _ = stored("int8", 1.0, False)
    model = graph()
    quantize(model, [tensors_of(n) for n in "ab"], external_tensors(found))
    dequantize = next(
        n for n in model.graph if n.op_type == "DequantizeLinear" and not n.attributes
    )
    dequantize.replace_input_with(1, model.graph.initializers["net.b.weight_scale"])
    with pytest.raises(BuildError, match="dequantized otherwise"):
        found_gemms(model)
