"""Attention that is rewritten computes what it computed before, in ONNX Runtime."""

from collections import Counter

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import helper, numpy_helper, shape_inference

from vidc.compiler.backends.onnxruntime.heads import use_packed_heads
from vidc.compiler.config.presets import load_preset
from vidc.exporters.export import export_component

TOKENS, SLOTS, HEADS, SIZE = 5, 7, 3, 4


def graph(
    batch=1, dtype=np.float32, mask="ring", perm=(0, 2, 1, 3), first=0, shown=(), **attributes
):
    """Attention between transposes; ``shown`` are results beside its own."""
    element = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    query, ring = [batch, TOKENS, HEADS, SIZE], [batch, SLOTS, HEADS, SIZE]
    constants = {
        "slots": np.arange(first, first + SLOTS), "two": np.array([0, 1]), "three": np.array([0]),
        "rows": np.array([1, 1, TOKENS, SLOTS]),
    }  # fmt: skip
    nodes = [
        helper.make_node("Less", ["slots", "length"], ["valid"]),
        helper.make_node("Unsqueeze", ["valid", "two"], ["valid3"]),
        helper.make_node("Unsqueeze", ["valid3", "three"], ["valid4"]),
        helper.make_node("Expand", ["valid4", "rows"], ["ring"]),
    ]
    nodes = nodes if mask == "ring" else []
    turned = [helper.make_node("Transpose", [x], [f"{x}t"], perm=perm) for x in "qkv"]
    nodes += [
        *turned,
        helper.make_node(
            "Attention", ["qt", "kt", "vt", *([mask] if mask else [])], ["attended"], **attributes
        ),
        helper.make_node("Transpose", ["attended"], ["y"], perm=perm),
    ]
    given = [("q", element, query), ("k", element, ring), ("v", element, ring)]
    given += [("length", 7, [1]), ("other", 9, [1, 1, TOKENS, SLOTS])]
    made = helper.make_graph(
        nodes, "attention", [helper.make_tensor_value_info(*each) for each in given],
        [helper.make_tensor_value_info(n, element, None) for n in ("y", *shown)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    return shape_inference.infer_shapes(model, data_prop=True)


def run(model, batch, dtype, length, result="y"):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    draw = np.random.default_rng(2).standard_normal
    feeds = {
        "q": draw((batch, TOKENS, HEADS, SIZE)), "k": draw((batch, SLOTS, HEADS, SIZE)),
        "v": draw((batch, SLOTS, HEADS, SIZE)),
    }  # fmt: skip
    feeds = {name: value.astype(dtype) for name, value in feeds.items()}
    feeds["length"] = np.array([length])
    feeds["other"] = np.arange(TOKENS * SLOTS).reshape(1, 1, TOKENS, SLOTS) % 3 > 0
    return session.run([result], feeds)[0]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("mask", ["ring", "other", None])
def test_one_attention_without_transposes_computes_the_same(mask, batch, dtype):
    before = graph(batch, dtype, mask)
    model = ir.from_proto(before)
    assert use_packed_heads(model) == 1
    operators = Counter(node.op_type for node in model.graph)
    assert (operators["Attention"], operators["Transpose"], operators["Less"]) == (1, 0, 0)
    for length in (1, 4, SLOTS):
        found = run(ir.to_proto(model), batch, dtype, length)
        np.testing.assert_array_equal(found, run(before, batch, dtype, length))


@pytest.mark.parametrize("changed", [{"first": 1}, {"is_causal": 1}], ids=str)
def test_a_mask_that_says_more_than_the_number_of_keys_remains(changed):
    before = graph(**changed)
    model = ir.from_proto(before)
    assert use_packed_heads(model) == 1
    assert "Less" in {node.op_type for node in model.graph}
    found = run(ir.to_proto(model), 1, np.float32, 4)
    np.testing.assert_array_equal(found, run(before, 1, np.float32, 4))


def test_attention_to_attention_is_rewritten_twice():
    """The result of one is the query of the next, transposed back and forth."""
    before = graph(mask=None, shown=("z",))
    nodes = [
        helper.make_node("Transpose", ["y"], ["yt"], perm=(0, 2, 1, 3)),
        helper.make_node("Attention", ["yt", "kt", "vt"], ["again"]),
        helper.make_node("Transpose", ["again"], ["z"], perm=(0, 2, 1, 3)),
    ]
    before.graph.node.extend(nodes)
    before = shape_inference.infer_shapes(before)
    model = ir.from_proto(before)
    assert use_packed_heads(model) == 2
    found = run(ir.to_proto(model), 1, np.float32, SLOTS, "z")
    np.testing.assert_array_equal(found, run(before, 1, np.float32, SLOTS, "z"))


def test_attention_of_an_exported_component_takes_the_number_of_keys(tmp_path):
    part = load_preset("tiny").model.parts["transformer"]
    model = ir.load(export_component(part, "fp32", "kv_update", tmp_path).onnx)
    masked = [len(node.inputs) > 3 for node in model.graph if node.op_type == "Attention"]
    assert any(masked)
    assert use_packed_heads(model) == len(masked)
    inputs = [node.inputs[3:] for node in model.graph if node.op_type == "Attention"]
    assert [len(each) == 4 and each[0] is None for each in inputs] == masked


@pytest.mark.parametrize(
    "changed", [{"perm": (0, 1, 2, 3), "mask": None}, {"shown": ("attended",)}], ids=str
)
def test_other_attention_stays_as_it_is(changed):
    model = ir.from_proto(graph(**changed))
    assert use_packed_heads(model) == 0
    assert Counter(node.op_type for node in model.graph)["Transpose"] == 4
