"""Linears in 8 bits in networks of TensorRT-RTX, and what of them is in 8 bits in its plans."""

from dataclasses import replace

import onnx_ir as ir
import pytest
import torch
from torch import nn

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends.native_graph import Graph
from vidc.compiler.backends.tensorrt.backend import backend
from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.engine_layers import EngineLayers
from vidc.compiler.backends.tensorrt.network import parse
from vidc.compiler.backends.tensorrt.plan import LAYERS, eight_bit_matmuls
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.backends.tensorrt.quantized import QuantizedMatmul, _Edges, quantized_matmuls
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.plan import inspect_plan
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.quantize.programs import quantize_program
from vidc.compiler.quantize.support import TENSORRT
from vidc.exporters.export import export_component
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.onnx import quantized_linear as form
from vidc.exporters.onnx.quantized_linear import quantized_linear_qdq
from vidc.exporters.onnx.simplify import simplify
from vidc.exporters.tracing import tracing
from vidc.plugins.errors import BuildError
from vidc.plugins.signature import Signature

RTX = PRODUCTS["tensorrt_rtx"]
TARGET = targets()["rtx4090"]
TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
SMOOTH = LinearTensors("net.weight", "net.scale", "net.input_scale", "net.input_factor")
STATIC = replace(SMOOTH, input_factor=None)
CENTRED = replace(STATIC, input_mean="net.input_mean")
BOTH = replace(SMOOTH, input_mean="net.input_mean")
ALONE = replace(STATIC, input_scale=None)
IN, OUT, ROWS = 128, 256, 64


class _Linear(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.given = given

    def forward(self, x, *tensors):
        named = dict(zip(self.given, tensors, strict=True))
        names = ("weight", "scale", "bias", "input_scale", "input_factor", "input_mean")
        # What comes before may be multiplied with a weight: it is no factor of the Linear's.
        x = x * named["net.gain"]
        return quantized_linear_qdq(x, *(named.get(f"net.{name}") for name in names))


@pytest.fixture
def linear(tmp_path):
    """The graph of one Linear, of which the network's inputs are the weights."""

    def make(asked, kind="fp8", dtype=torch.float16):
        sizes = {"scale": OUT, "input_scale": 1, "input_factor": IN, "input_mean": IN}
        given = {"net.gain": torch.empty(IN, dtype=dtype)}
        for name in asked.names:
            part = name.removeprefix("net.")
            given[name] = (
                torch.empty(OUT, IN, dtype=TYPES[kind])
                if part == "weight"
                else torch.empty(sizes[part])
            )
        given["net.bias"] = torch.empty(OUT, dtype=dtype)
        with tracing():
            made = torch.onnx.export(
                _Linear(tuple(given)).eval(),
                (torch.empty(2, ROWS, IN, dtype=dtype), *given.values()),
                input_names=["x", *given],
                output_names=["y"],
                opset_version=24,
                optimize=False,
                verbose=False,
            )
        simplify(made.model)
        path = tmp_path / "toy.onnx"
        ir.save(made.model, path)
        return Graph(path, Signature(()), frozenset(), (asked,))

    return make


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "asked", [STATIC, SMOOTH, CENTRED, BOTH], ids=["static", "smooth", "centered", "both"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_a_linear_is_a_product_of_8_bits(linear, kind, asked, dtype):
    parsed = parse("toy", linear(asked, kind, dtype), RTX)
    (found,) = quantized_matmuls(RTX.module(), parsed.definition)
    assert found == QuantizedMatmul(found.name, asked, kind, kind)
    assert found.computes
    assert eight_bit_matmuls(build_plan("toy", parsed, RTX, TARGET)) == (found.name,)


@pytest.mark.parametrize("kind", TYPES)
def test_weights_alone_are_multiplied_in_high_precision(linear, kind):
    parsed = parse("toy", linear(ALONE, kind), RTX)
    (found,) = quantized_matmuls(RTX.module(), parsed.definition)
    assert found == QuantizedMatmul(found.name, ALONE, kind, "half")
    assert not found.computes
    assert eight_bit_matmuls(build_plan("toy", parsed, RTX, TARGET)) == ()


def test_scales_that_are_no_constants_do_not_fuse(linear, monkeypatch):
    """TensorRT takes them and says nothing: it is seen in the plan alone."""

    def given(steps, unit, dtype):
        return torch.onnx.ops.symbolic(
            "DequantizeLinear", (steps, scales[-1].to(dtype)), dtype=dtype, shape=steps.shape,
            version=24,
        )  # fmt: skip

    scales = []
    inner = form.quantized_linear_qdq

    def with_scale(x, weight, scale, bias, input_scale, *before):
        scales.append(input_scale[0])
        return inner(x, weight, scale, bias, input_scale, *before)

    monkeypatch.setattr(form, "_dequantized", given)
    monkeypatch.setitem(globals(), "quantized_linear_qdq", with_scale)
    parsed = parse("toy", linear(STATIC), RTX)
    (found,) = quantized_matmuls(RTX.module(), parsed.definition)
    assert found.computes
    assert eight_bit_matmuls(build_plan("toy", parsed, RTX, TARGET)) == ()


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ((), r"asks for 0 weights and 0 inputs.*has 1 weights and 1 inputs.*net\.weight"),
        ((ALONE,), "asks for 1 weights and 0 inputs"),
        ((SMOOTH,), r"first difference is net\.weight"),
        ((replace(STATIC, weight_scale="net.other"),), r"first difference is net\.weight"),
        ((STATIC, replace(STATIC, weight="net.other")), r"first difference is net\.other"),
    ],
)
def test_a_network_of_other_linears_is_refused(linear, asked, says):
    graph = replace(linear(STATIC), linears=asked)
    with pytest.raises(BuildError, match=f"toy: .*{says}") as caught:
        parse("toy", graph, RTX)
    assert caught.value.code == "VIDC-QUANTIZE-COUNT"


def test_a_pair_too_many_is_refused(linear):
    graph = linear(STATIC)
    model = ir.load(graph.path)
    (pair,) = (node for node in model.graph if node.op_type == "QuantizeLinear")
    unit = pair.inputs[1]
    again = [ir.node("QuantizeLinear", [pair.inputs[0], unit], {"output_dtype": 17}, name="q")]
    again.append(ir.node("DequantizeLinear", [again[0].outputs[0], unit], name="dq"))
    for node, kind in zip(again, (ir.DataType.FLOAT8E4M3FN, ir.DataType.FLOAT), strict=True):
        node.outputs[0].name, node.outputs[0].shape = f"{node.name}.out", pair.outputs[0].shape
        node.outputs[0].dtype = kind
    model.graph.insert_after(pair, again)
    model.graph.outputs.append(again[1].outputs[0])
    ir.save(model, graph.path)
    with pytest.raises(BuildError, match="needs 1 Q and 2 DQ, the parsed network has 2 and 3"):
        parse("toy", graph, RTX)


SMALL = ("model.layers=1", "stream.height=16", "stream.width=32", "stream.window=6")


@pytest.fixture(scope="module")
def text_kv(tmp_path_factory):
    """A component of the smallest preset in FP8."""
    config = resolve("tiny", gpu="cpu", assignments=SMALL, environ={}).model
    exported = export_component(
        config.parts["transformer"], "fp16", "text_kv", tmp_path_factory.mktemp("exported")
    )
    made = replace(exported, folder=tmp_path_factory.mktemp("quantized"))
    weights = config.parts["transformer"].network("fp16").state_dict()
    linears = quantized_linears(load_recipe("fp8-linear"), config, TENSORRT)
    quantize_program(
        "text_kv", exported.program, "transformer", weights, linears, made.program, {},
        exported.signature,
    )  # fmt: skip
    return made


def test_a_component_s_plan_holds_the_recipe(text_kv, tmp_path):
    engine = backend.compile(text_kv, TARGET, {}, tmp_path)
    found = inspect_plan(tmp_path / engine.files[0])
    weights = {product.weight for product in found.network.quantized}
    assert weights == {f"transformer.blocks.0.attn2.to_{part}.weight" for part in "kv"}
    assert {(p.weights, p.inputs, p.computes) for p in found.network.quantized} == {
        ("fp8", "fp8", True)
    }
    # Keys and values read one text: one pair is theirs, and each weight has a DQ.
    assert found.network.layers["quantize"] == {"fp8": 1}
    assert found.network.layers["dequantize"] == {"half": 3}
    assert found.unfused == ()
    assert engine.notes == ()


def test_rejects_graph_without_quantized_linear(text_kv, tmp_path, monkeypatch):
    products = _Edges.products

    def without_scales(edges):
        return [
            replace(found, tensors=replace(found.tensors, input_scale=None))
            for found in products(edges)
        ]

    # Not the function of that name: a module that is first imported now would keep this one.
    monkeypatch.setattr(_Edges, "products", without_scales)
    with pytest.raises(BuildError, match=r"text_kv: .*2 weights and 2 inputs.*2 weights and 0"):
        backend.compile(text_kv, TARGET, {}, tmp_path)


def test_unfused_matmuls_are_noted(text_kv, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "vidc.compiler.backends.tensorrt.backend.eight_bit_matmuls", lambda plan: ()
    )
    monkeypatch.setattr(EngineLayers, "in_8_bits", lambda self, product: False)
    engine = backend.compile(text_kv, TARGET, {}, tmp_path)
    (note,) = engine.notes
    assert "text_kv: 2 of 2 quantized matmuls run in high precision" in note
    assert [p.weight for p in inspect_plan(tmp_path / engine.files[0]).unfused] == [
        f"transformer.blocks.0.attn2.to_{part}.weight" for part in "kv"
    ]


def test_unknown_layers_are_noted(text_kv, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "vidc.compiler.backends.tensorrt.built_layers.built_layers", lambda *_: None
    )
    engine = backend.compile(text_kv, TARGET, {}, tmp_path)
    (note,) = engine.notes
    assert "text_kv: TensorRT-RTX did not report the plan's layers" in note
    assert {file.rpartition("text_kv")[2] for file in engine.files} == {".plan", LAYERS}
