import pytest

from vidc.compiler.inspect.changes import Change
from vidc.compiler.inspect.graph import compare_graphs, describe_graph, load_graph


def described(path, model=None):
    return describe_graph(path, model or load_graph(path))


@pytest.fixture
def old(make_graph):
    return described(make_graph("a.onnx"))


def test_equal_graphs_have_no_changes(make_graph, old):
    assert compare_graphs(old, described(make_graph("b.onnx"))) == {}


def test_another_operator_is_counted_and_changes_the_wiring(make_graph, old):
    changed = compare_graphs(old, described(make_graph("b.onnx", operator="Neg")))
    assert changed["operators"] == (Change("Relu", 1, None), Change("Neg", None, 1))
    assert [change.name for change in changed["graph"]] == ["wiring"]


@pytest.mark.parametrize(("arguments", "name"), [({"offset": 16}, "w"), ({"constant": 2.0}, "c")])
def test_an_initializer_differs_by_where_it_is_or_by_its_value(make_graph, old, arguments, name):
    changed = compare_graphs(old, described(make_graph("b.onnx", **arguments)))
    assert [change.name for change in changed.pop("initializers")] == [name]
    assert changed == {}


def test_edges_matter_where_all_counts_are_equal(make_graph, old):
    path = make_graph("b.onnx")
    model = load_graph(path)
    model.graph.node[2].input[0] = "sum"
    assert compare_graphs(old, described(path, model)).keys() == {"graph"}


def test_a_shape_of_an_input_differs(make_graph, old):
    path = make_graph("b.onnx")
    model = load_graph(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    assert compare_graphs(old, described(path, model)) == {
        "inputs": (Change("x", "float32 [batch, 3]", "float32 [4, 3]"),)
    }
