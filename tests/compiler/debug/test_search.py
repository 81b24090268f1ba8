"""Cuts of a graph, and errors of values."""

from pathlib import Path

import onnx
import pytest
import torch

from vidc.compiler.debug.graph import EngineGraph
from vidc.compiler.debug.search import cut, relative_error
from vidc.runtime.engines.onnxruntime import Options

TEXT = """
<ir_version: 10, opset_import: ["" : 24]>
toy (float[2] x, float[2] state) => (float[2] y)
<float[2] w = {3.0, 4.0}> {
  [first] a = Mul(x, w)
  [second] b = Add(a, state)
  [third] c = Neg(b)
  [fourth] y = Mul(c, a)
}
"""


@pytest.fixture
def graph(tmp_path: Path) -> EngineGraph:
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(TEXT))
    path = tmp_path / "toy.onnx"
    onnx.save(model, path)
    given = {"x": torch.tensor([1.0, 2.0]), "state": torch.tensor([10.0, 20.0])}
    return EngineGraph(path, Options("ORT_ENABLE_ALL", True).session_options(), given, ["y"])


def test_values_between_the_layers_are_outputs(graph):
    assert graph.names == ["a", "b", "c", "y"]
    found = graph.values(["a", "c"])
    assert found["a"].tolist() == [3, 8]
    assert found["c"].tolist() == [-13, -28]
    assert graph.operator("c") == "Neg 'third'"


@pytest.mark.parametrize(
    ("known", "depth", "begins"),
    [
        ({"a", "b", "c"}, 1, {"a", "c"}),
        ({"a", "b", "c"}, 2, {"b", "x"}),
        ({"a", "b", "c"}, 9, {"x", "state"}),
        ({"a"}, 1, {"a", "state"}),
        (set(), 1, {"x", "state"}),
    ],
)
def test_a_part_begins_at_known_values(graph, tmp_path, known, depth, begins):
    inputs = cut(graph, "y", known, depth)
    part = graph.part(inputs, "y")
    assert set(inputs) == begins
    path = tmp_path / "part.onnx"
    given = {"a": torch.tensor([3.0, 8.0]), "b": torch.tensor([13.0, 28.0])}
    given["c"] = -given["b"]
    taken = part.save(path, {name: given[name] for name in inputs if name in given}, {})
    model = onnx.load(path)
    assert {value.name for value in model.graph.input} == begins == taken.keys()
    onnx.checker.check_model(model)
    assert part.value(given).tolist() == [-39, -224]


def test_infinities_of_a_mask_are_no_error():
    masked = torch.tensor([1.0, -torch.inf])
    assert relative_error(masked, masked) == 0
    assert relative_error(torch.tensor([1.1, -torch.inf]), masked) == pytest.approx(0.1)
    assert relative_error(torch.tensor([1.0, torch.inf]), masked) == torch.inf
    assert relative_error(torch.tensor([1.0, torch.nan]), masked) == torch.inf
