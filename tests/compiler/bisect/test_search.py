"""Where a graph is cut, and what counts as an error."""

from pathlib import Path

import onnx
import pytest
import torch

from vidc.compiler.bisect.graph import EngineGraph
from vidc.compiler.bisect.search import relative_error
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
    return EngineGraph(path, Options("ORT_ENABLE_ALL", True).session_options())


def test_values_between_the_layers_are_outputs(graph):
    given = {"x": torch.tensor([1.0, 2.0]), "state": torch.tensor([10.0, 20.0])}
    assert graph.floats == ["a", "b", "c", "y"]
    found = graph.values(["a", "c"], given)
    assert found["a"].tolist() == [3, 8]
    assert found["c"].tolist() == [-13, -28]
    assert graph.operator("c") == "Neg 'third'"


@pytest.mark.parametrize(
    ("known", "depth", "cut"),
    [
        ({"a", "b", "c"}, 1, {"a", "c"}),
        ({"a", "b", "c"}, 2, {"b", "x"}),
        ({"a", "b", "c"}, 9, {"x", "state"}),
        ({"a"}, 1, {"a", "state"}),
        (set(), 1, {"x", "state"}),
    ],
)
def test_a_part_begins_at_known_values(graph, known, depth, cut):
    inputs = graph.before("y", known, depth)
    part = graph.part(inputs, "y")
    assert set(inputs) == cut
    assert {value.name for value in part.graph.input} == cut
    onnx.checker.check_model(part)


def test_infinities_of_a_mask_are_no_error():
    masked = torch.tensor([1.0, -torch.inf])
    assert relative_error(masked, masked) == 0
    assert relative_error(torch.tensor([1.1, -torch.inf]), masked) == pytest.approx(0.1)
    assert relative_error(torch.tensor([1.0, torch.inf]), masked) == torch.inf
    assert relative_error(torch.tensor([1.0, torch.nan]), masked) == torch.inf
