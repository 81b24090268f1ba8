"""Data for Polygraphy, used by Polygraphy."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from polygraphy_tool import run
from safetensors.torch import save_file

from vidc.compiler.debug import polygraphy_data
from vidc.compiler.debug.reproduce import Reproduction
from vidc.plugins.errors import UnavailableError

LIMIT = 1e-3
STEPS = {"gated": torch.sigmoid, "active": torch.relu, "root": torch.sqrt}
"""Values of a chain by name, with what computes each from the one before."""


class Computed:
    """PyTorch's values of the chain."""

    names = STEPS.keys()

    def __init__(self, x):
        self._values = {}
        for name, step in STEPS.items():
            x = self._values[name] = step(x)

    def values(self, names):
        return {name: self._values[name] for name in names}


def chain(path: Path, **kinds: str) -> Path:
    """A graph of the chain, in which the named values come from other operators."""
    operators = {"gated": "Sigmoid", "active": "Relu", "root": "Sqrt"} | kinds
    pairs = zip(("x", *operators), operators, strict=False)
    nodes = [helper.make_node(operators[name], [value], [name]) for value, name in pairs]
    info = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 8]) for name in ("x", "root")
    ]
    graph = helper.make_graph(nodes, "chain", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


@pytest.fixture
def given():
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1))


def reproduction(graph: Path, given) -> Reproduction:
    tensors = graph.with_suffix(".safetensors")
    save_file({"x": given}, tensors)
    return Reproduction(graph, tensors, len(STEPS), 1.0, ("x",))


@pytest.mark.parametrize(("kinds", "status"), [({}, 0), ({"active": "Tanh"}, 1)])
def test_polygraphy_compares_a_graph_with_pytorchs_results(given, tmp_path, kinds, status):
    graph = chain(tmp_path / "chain.onnx", **kinds)
    results = Computed(given).values(["root"])
    data = polygraphy_data.write(graph, {"x": given}, results, LIMIT, tmp_path)
    done = run(data.run(), tmp_path)
    assert done.returncode == status, done.stdout + done.stderr


def test_polygraphy_reduces_a_reproducer_to_the_planted_fault(given, tmp_path):
    graph = chain(tmp_path / "chain.onnx", active="Tanh")
    data = polygraphy_data.write_reproducer(reproduction(graph, given), Computed(given), LIMIT)
    done = run(data.reduce(), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    reduced = onnx.load(tmp_path / "chain.reduced.onnx")
    assert [node.op_type for node in reduced.graph.node] == ["Tanh"]


def test_without_polygraphy_its_data_are_refused(monkeypatch):
    monkeypatch.setattr(polygraphy_data, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="no module polygraphy") as caught:
        polygraphy_data.require_polygraphy()
    assert caught.value.code == "VIDC-ENV-POLYGRAPHY"
