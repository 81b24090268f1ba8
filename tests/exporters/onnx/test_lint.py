from contextlib import nullcontext
from dataclasses import dataclass

import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch

from vidc.compiler.backends import GraphError
from vidc.compiler.backends.graph_values import require_clean_graph
from vidc.exporters.onnx.constructs import CONSTRUCTS
from vidc.exporters.onnx.lint import lint

PARSERS = ["tensorrt", "tensorrt_rtx", "onnxruntime", "onnxruntime_cuda"]

HEADER = """<ir_version: 10, opset_import: ["" : {opset}, "vidc" : 1]>
graph ({dtype}[1, 2, 4, {head}] q, {dtype}[1, 2, {keys}, {head}] k, {dtype}[1, 2, {keys}, {head}] v,
       bool[{rows}, {keys}] mask, int64[1] length)
    => ({dtype}[1, 2, 4, {head}] y) {{ {body} }}"""


def attention(
    inputs: str = "q, k, v",
    attributes: str = "",
    dtype: str = "float16",
    head: int = 8,
    keys: int = 6,
    rows: int = 4,
    opset: int = 24,
) -> ir.Model:
    body = f"y = Attention{attributes}({inputs})"
    return ir.from_onnx_text(
        HEADER.format(opset=opset, dtype=dtype, head=head, keys=keys, rows=rows, body=body)
    )


def other(body: str, keys: int = 6, dtype: str = "float16") -> ir.Model:
    return ir.from_onnx_text(
        HEADER.format(opset=24, dtype=dtype, head=8, keys=keys, rows=4, body=body)
    )


@dataclass
class Case:
    """A minimal graph with one construct, and the parsers that must object to it."""

    model: ir.Model
    parsers: set[str]


def rounded(
    q: str = "(x, s, z)", dq: str = "(b, s, z)", scale: str = "float s = {0.5}", zero: str = "0"
) -> ir.Model:
    """A product of which the first operand is rounded."""
    kind = "uint8" if zero.startswith("u") else "int8"
    text = f"""<ir_version: 10, opset_import: ["" : 24]>
    graph (float[4, 8] x, float[8, 8] w, float given) => (float[4, 8] y)
    <{scale}, {kind} z = {{{zero.removeprefix("u")}}}> {{
      [q] b = QuantizeLinear{q}
      [dq] c = DequantizeLinear{dq}
      [product] y = MatMul(c, w)
    }}"""
    return ir.from_onnx_text(text)


TENSORRT = {"tensorrt", "tensorrt_rtx"}
ONNXRUNTIME = {"onnxruntime", "onnxruntime_cuda"}
PAD = "zeros = Constant<value_ints = [0, 0, 0, 0, 0, 0, 0, 0]>() y = Pad(q, zeros)"
OFFENDING = {
    "attention-padded-keys": Case(attention("q, k, v, , , , length"), TENSORRT),
    "attention-window-ignored": Case(
        attention(attributes="<left_window_size = 2>", opset=25), TENSORRT
    ),
    "attention-window-refused": Case(
        attention(attributes="<right_window_size = 0>", opset=25), ONNXRUNTIME
    ),
    "attention-causal-rectangle": Case(attention(attributes="<is_causal = 1>"), TENSORRT),
    "attention-f32": Case(attention(dtype="float"), {"tensorrt_rtx"}),
    "attention-wide-head": Case(attention(head=384), {"tensorrt_rtx"}),
    "attention-decomposable": Case(attention(attributes="<TRT_decomposable = 1>"), ONNXRUNTIME),
    "attention-bf16": Case(attention(dtype="bfloat16"), {"onnxruntime"}),
    "attention-mask-broadcast": Case(attention("q, k, v, mask", rows=1), ONNXRUNTIME),
    "pad-bf16": Case(other(PAD, dtype="bfloat16"), ONNXRUNTIME),
    "tensor-scatter-circular": Case(
        other('w = TensorScatter<mode = "circular">(k, q, length) y = Attention(q, w, v)'),
        TENSORRT,
    ),
    "rounding-scale-given": Case(rounded("(x, given, z)", "(b, given, z)"), TENSORRT),
    "rounding-scale-sign": Case(rounded(scale="float s = {-0.5}"), TENSORRT),
    "rounding-scale-shape": Case(
        rounded("(x, s)", "(b, s)", "float[3] s = {0.5, 0.5, 0.5}"), TENSORRT
    ),
    "rounding-zero-point": Case(rounded(zero="3"), TENSORRT),
    "rounding-unsigned": Case(rounded("(x, s)", "(b, s)"), TENSORRT),
    "rounding-saturate": Case(
        rounded("<output_dtype = 17, saturate = 0>(x, s)", "(b, s)"), TENSORRT
    ),
    "custom-operator-plugin": Case(other("y = vidc.ring_attention(q, k, v)"), TENSORRT),
    "custom-operator": Case(other("y = vidc.ring_attention(q, k, v)"), ONNXRUNTIME),
}


def test_every_construct_has_an_offending_graph():
    assert [construct.code for construct in CONSTRUCTS] == list(OFFENDING)


@pytest.mark.parametrize("code", OFFENDING)
def test_a_construct_is_found_for_its_parsers_alone(code):
    case = OFFENDING[code]
    found = {
        parser
        for parser in PARSERS
        if any(finding.construct.code == code for finding in lint(case.model, parser))
    }
    assert found == case.parsers


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    "model",
    [
        pytest.param(attention("q, k, v, mask"), id="expanded-mask"),
        pytest.param(attention(attributes="<is_causal = 1>", keys=4), id="causal-square"),
        pytest.param(other("w = TensorScatter(k, q, length) y = Attention(q, w, v)"), id="linear"),
    ],
)
def test_graph_for_every_parser_is_clean(model, parser):
    assert lint(model, parser) == []


EIGHT = "{0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}"
CLEAN = {
    "scalar": rounded(),
    "one": rounded(scale="float[1] s = {0.5}", q="<output_dtype = 3>(x, s)", dq="(b, s)"),
    "channels": rounded("<output_dtype = 3>(x, s)", "(b, s)", f"float[8] s = {EIGHT}"),
    "negative axis": rounded(
        "<output_dtype = 3, axis = -1>(x, s)", "<axis = -1>(b, s)", f"float[8] s = {EIGHT}"
    ),
    "blocks": rounded(
        "<output_dtype = 3, block_size = 4>(x, s)",
        "<block_size = 4>(b, s)",
        f"float[4, 2] s = {EIGHT}",
    ),
    "fp8": rounded("<output_dtype = 17>(x, s)", "(b, s)"),
}


def with_shapes(model: ir.Model) -> ir.Model:
    return ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(model)))


@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("parser", PARSERS)
def test_qdq_for_every_parser_is_clean(name, parser):
    assert lint(with_shapes(CLEAN[name]), parser) == []


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (rounded(scale="float s = {0.0}"), "rounding-scale-sign"),
        (rounded("<axis = 5>(x, s, z)", scale=f"float[8] s = {EIGHT}"), "rounding-scale-shape"),
        (rounded("<axis = 0>(x, s, z)", scale=f"float[8] s = {EIGHT}"), "rounding-scale-shape"),
        (
            rounded("<block_size = 3>(x, s, z)", scale=f"float[4, 2] s = {EIGHT}"),
            "rounding-scale-shape",
        ),
        (rounded(zero="u0"), "rounding-unsigned"),
        (rounded(zero="u128"), "rounding-zero-point"),
        (rounded("<output_dtype = 2>(x, s)"), "rounding-unsigned"),
    ],
)
def test_finds_qdq_that_a_parser_computes_differently(model, code):
    first = lint(with_shapes(model), "tensorrt")
    assert code in {found.construct.code for found in first if found.op_type == "QuantizeLinear"}


def test_a_scale_in_another_file_is_not_read(tmp_path):
    model = rounded()
    scale = model.graph.initializers["s"]
    scale.const_value = ir.ExternalTensor(
        "absent", 0, 4, ir.DataType.FLOAT, shape=ir.Shape(()), name="s", base_dir=tmp_path
    )
    scale.shape = ir.Shape(())
    assert lint(model, "tensorrt_rtx") == []


def test_f32_that_may_be_decomposed_is_clean():
    model = attention(dtype="float", head=384, attributes="<TRT_decomposable = 1>")
    assert lint(model, "tensorrt_rtx") == []


def test_reports_a_node_with_an_unknown_shape():
    model = attention("q, k, v, mask")
    model.graph.inputs[3].shape = None
    assert [f.construct.code for f in lint(model, "onnxruntime")] == ["attention-mask-broadcast"]


TAKEN_SINCE = {"attention-window-refused": (1, 32), "pad-bf16": (1, 32)}
"""Versions of ONNX Runtime from which on a CPU takes what older ones refuse."""


@pytest.mark.parametrize(
    "code",
    [
        "attention-window-refused",
        "attention-decomposable",
        "attention-bf16",
        "pad-bf16",
        "custom-operator",
    ],
)
def test_onnxruntime_refuses_what_the_table_says_it_refuses(code):
    graph = ir.to_proto(OFFENDING[code].model).SerializeToString()
    version = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2])
    taken = code in TAKEN_SINCE and version >= TAKEN_SINCE[code]
    with nullcontext() if taken else pytest.raises(Exception, match="ONNXRuntimeError"):
        onnxruntime.InferenceSession(graph, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ["text_kv", "denoise", "kv_update", "recache_6"])
def test_exported_components_are_clean_for_onnxruntime(export, name):
    assert lint(export(name, window=6, batch=2).model, "onnxruntime") == []


def test_bf16_is_clean_for_tensorrt_and_refused_for_onnxruntime(export):
    model = export("denoise", dtype=torch.bfloat16).model
    assert lint(model, "tensorrt") == lint(model, "tensorrt_rtx") == []
    with pytest.raises(GraphError, match="bfloat16 attention") as raised:
        require_clean_graph("denoise", model, "onnxruntime")
    assert raised.value.code == "VIDC-EXPORT-LINT"
    attention_names = [node.name for node in model.graph if node.op_type == "Attention"]
    assert attention_names[0] in raised.value.message
    assert "fp16" in raised.value.hint
