"""Quantized linear layers in networks and plans of TensorRT-RTX."""

from dataclasses import replace

import onnx_ir as ir
import pytest
import torch
import transformer
from quantized import Quantized
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
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.plan import inspect_plan
from vidc.compiler.quantize.support import TENSORRT
from vidc.exporters.onnx import quantized as form
from vidc.exporters.onnx.quantized import linear_for_tensorrt
from vidc.exporters.onnx.simplify import simplify
from vidc.exporters.tracing import tracing
from vidc.plugins.errors import BuildError
from vidc.plugins.signature import Signature

RTX = PRODUCTS["tensorrt_rtx"]
TARGET = targets()["rtx4090"]
TYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}
WEIGHT = "net.weight"
STATIC = ("scale",)
SMOOTH = ("scale", "pre_quant_scale")
CENTERED = ("scale", "mean")
BOTH = (*SMOOTH, "mean")
ALONE = ()
IN, OUT, ROWS = 128, 256, 64


class _Linear(nn.Module):
    def __init__(self, given):
        super().__init__()
        self.given = given

    def forward(self, x, *tensors):
        named = dict(zip(self.given, tensors, strict=True))
        names = ("weight", "weight_scale", "bias")
        of_input = ("scale", "pre_quant_scale", "mean")
        # What comes before may be multiplied with a weight: it is no factor of the input's.
        x = x * named["net.gain"]
        return linear_for_tensorrt(
            x,
            *(named[f"net.{name}"] for name in names),
            *(named.get(f"net.input_quantizer.{name}") for name in of_input),
        )


@pytest.fixture
def linear(tmp_path):
    """The graph of one linear layer, whose tensors are inputs of the network."""

    def make(of_input, kind="fp8", dtype=torch.float16):
        sizes = {"scale": (), "pre_quant_scale": (IN,), "mean": (IN,)}
        given = {
            "net.gain": torch.empty(IN, dtype=dtype),
            WEIGHT: torch.empty(OUT, IN, dtype=TYPES[kind]),
            "net.weight_scale": torch.empty(OUT),
            "net.bias": torch.empty(OUT, dtype=dtype),
        } | {f"net.input_quantizer.{name}": torch.empty(sizes[name]) for name in of_input}
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
        return Graph(path, Signature(()), frozenset(), {WEIGHT: bool(of_input)})

    return make


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize(
    "of_input", [STATIC, SMOOTH, CENTERED, BOTH], ids=["static", "smooth", "centered", "both"]
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_quantized_linear_is_an_8bit_matmul(linear, kind, of_input, dtype):
    parsed = parse("toy", linear(of_input, kind, dtype), RTX)
    (found,) = quantized_matmuls(RTX.module(), parsed.definition)
    assert found == QuantizedMatmul(found.name, WEIGHT, kind, kind, True)
    assert eight_bit_matmuls(build_plan("toy", parsed, RTX, TARGET)) == (found.name,)


@pytest.mark.parametrize("kind", TYPES)
def test_weights_alone_are_multiplied_in_high_precision(linear, kind):
    parsed = parse("toy", linear(ALONE, kind), RTX)
    (found,) = quantized_matmuls(RTX.module(), parsed.definition)
    assert found == QuantizedMatmul(found.name, WEIGHT, kind, "half", False)
    assert eight_bit_matmuls(build_plan("toy", parsed, RTX, TARGET)) == ()


def test_scales_that_are_no_constants_do_not_fuse(linear, monkeypatch):
    """TensorRT takes them and says nothing: it is seen in the plan alone."""

    def given(steps, unit, dtype):
        return torch.onnx.ops.symbolic(
            "DequantizeLinear", (steps, scales[-1].to(dtype)), dtype=dtype, shape=steps.shape,
            version=24,
        )  # fmt: skip

    scales = []
    inner = linear_for_tensorrt

    def with_scale(x, weight, weight_scale, bias, scale, *before):
        scales.append(scale)
        return inner(x, weight, weight_scale, bias, scale, *before)

    monkeypatch.setattr(form, "_dequantized", given)
    monkeypatch.setitem(globals(), "linear_for_tensorrt", with_scale)
    parsed = parse("toy", linear(STATIC), RTX)
    (found,) = quantized_matmuls(RTX.module(), parsed.definition)
    assert found.computes
    assert eight_bit_matmuls(build_plan("toy", parsed, RTX, TARGET)) == ()


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        ({}, r"asks for 0 weights and 0 inputs.*has 1 weights and 1 inputs.*net\.weight"),
        ({WEIGHT: False}, r"asks for 1 weights and 0 inputs.*first difference is net\.weight"),
        ({WEIGHT: True, "net.other": True}, r"first difference is net\.other"),
    ],
)
def test_rejects_network_with_other_quantized_layers(linear, expected, says):
    graph = replace(linear(STATIC), quantized=expected)
    with pytest.raises(BuildError, match=f"toy: .*{says}") as caught:
        parse("toy", graph, RTX)
    assert caught.value.code == "VIDC-QUANTIZE-COUNT"


SMALL = ("model.layers=1", "stream.height=16", "stream.width=32", "stream.window=6")


@pytest.fixture(scope="module")
def text_kv(tmp_path_factory):
    """A component of the smallest preset in FP8."""
    quantized = Quantized(transformer.model(*SMALL), load_recipe("fp8-linear"), TENSORRT)
    folder = tmp_path_factory.mktemp("exported")
    return quantized.exported("text_kv", "fp16", folder, onnx=False)


def test_plan_of_a_component_holds_the_recipe(text_kv, tmp_path):
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
        return [replace(found, computes=False) for found in products(edges)]

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
