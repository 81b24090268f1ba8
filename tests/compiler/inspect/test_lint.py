from contextlib import suppress

import pytest

from vidc.compiler.inspect.graph import load_graph
from vidc.compiler.inspect.lint import find_issues
from vidc.plugins.errors import GateError


def test_a_graph_of_plain_operators_has_no_issues(make_graph):
    path = make_graph()
    assert find_issues(path, load_graph(path)) == ()


def test_nodes_are_gathered_by_parser_and_construct(make_graph):
    path = make_graph()
    model = load_graph(path)
    for index, node in enumerate(model.graph.node[:2]):
        node.domain, node.name = "elsewhere", f"n{index}"
    issues = find_issues(path, model)
    assert "onnxruntime" in {issue.parser for issue in issues}
    assert all(issue.nodes == ("n0", "n1") for issue in issues)


def test_a_model_that_contradicts_itself_is_refused(make_graph):
    path = make_graph()
    model = load_graph(path)
    model.graph.node.add().CopyFrom(model.graph.node[0])
    with pytest.raises(GateError, match="VIDC-INSPECT-GRAPH"):
        find_issues(path, model)


@pytest.mark.filterwarnings("ignore:Ignoring unknown external data")
@pytest.mark.parametrize("value", [0x00, 0x7F, 0xFF])
def test_a_damaged_graph_raises_only_our_errors(make_graph, value):
    path = make_graph()
    intact = path.read_bytes()
    for position in range(len(intact)):
        path.write_bytes(intact[:position] + bytes([value]) + intact[position + 1 :])
        with suppress(GateError):
            find_issues(path, load_graph(path))
