import hashlib
import json
import sys
from contextlib import suppress

import onnx
import pytest

from vidc.compiler.inspect.graph import (
    GraphTensor,
    describe_graph,
    external_files,
    load_graph,
)
from vidc.plugins.errors import GateError, UnavailableError
from vidc.runtime.strict import plain


def described(path):
    return describe_graph(path, load_graph(path))


def test_a_graph_is_described(make_graph):
    graph = described(make_graph())
    assert (graph.name, graph.producer, graph.opsets) == ("small", "test", {"ai.onnx": 24})
    assert graph.inputs == (GraphTensor("x", "float32", ("batch", 3)),)
    assert graph.outputs == (GraphTensor("y", "float32", ("?", 3)),)
    assert graph.operators == {"Add": 2, "Relu": 1}


def test_initializers_are_in_the_graph_or_beside_it(make_graph):
    graph = described(make_graph())
    weight, constant = graph.initializers
    # No length is given: it follows from shape and dtype.
    assert (weight.shape, weight.bytes) == ((2, 3), 24)
    assert (weight.location, weight.content) == ("weights/w.safetensors", "8")
    ones = b"\x00\x00\x80\x3f" * 3
    assert (constant.location, constant.bytes) == (None, len(ones))
    assert constant.content == hashlib.sha256(ones).hexdigest()
    assert external_files(graph) == {"weights/w.safetensors": 24}


def test_operators_of_subgraphs_functions_and_other_domains_are_counted(make_graph):
    path = make_graph()
    model = onnx.load_model(path, load_external_data=False)
    branch = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["z"])], "branch", [], [])
    model.graph.node.append(onnx.helper.make_node("If", ["x"], ["z"], then_branch=branch))
    ring = onnx.helper.make_node("ring_write", ["x"], ["z"], domain="vidc")
    opset = [onnx.helper.make_opsetid("", 24)]
    model.functions.append(onnx.helper.make_function("f", "F", ["x"], ["z"], [ring], opset))
    graph = describe_graph(path, model)
    assert graph.operators == {"Add": 2, "Relu": 1, "If": 1, "Neg": 1, "vidc::ring_write": 1}


@pytest.mark.parametrize("data", [b"", b"no graph", b"\xff" * 100])
def test_rejects_file_that_is_not_a_model(tmp_path, data):
    path = tmp_path / "graph.onnx"
    path.write_bytes(data)
    with pytest.raises(GateError, match="VIDC-INSPECT-GRAPH"):
        load_graph(path)


@pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
def test_a_damaged_graph_is_refused_or_printable(make_graph, value):
    path = make_graph()
    intact = path.read_bytes()
    for position in range(len(intact)):
        path.write_bytes(intact[:position] + bytes([value]) + intact[position + 1 :])
        with suppress(GateError):
            json.dumps(plain(described(path)))


def test_without_onnx_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(UnavailableError, match=r"\[build\]") as caught:
        load_graph(tmp_path / "graph.onnx")
    assert caught.value.code == "VIDC-ENV-ONNX"
