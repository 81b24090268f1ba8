"""Engines write a state as soon as its old value has been read."""

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._inductor import aoti_compile_and_package, aoti_load_package
from torch.nn import functional

from vidc.compiler.backends.aoti.state_writes import INDUCTOR, write_early

aten = torch.ops.aten


class Causal(nn.Module):
    """Two causal convolutions, each with a state of its last two inputs."""

    def forward(self, x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor]:
        for state in (first, second):
            kernel = torch.ones(2, 2, 3)
            past, last = state.mT, x[..., -2:].clone()
            x = functional.conv1d(torch.cat([past, x], 2), kernel).sin()
            state.copy_(last.mT)
        return (x,)


def arguments() -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 6), (1, 2, 2), (1, 2, 2)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], str]:
    """The targets of the graph that inductor compiles, and the package."""
    program = torch.export.export(Causal(), tuple(arguments()), strict=False)
    targets = []

    def look(graph: fx.Graph) -> None:
        write_early(graph)
        graph.lint()
        targets.extend(node.target for node in graph.nodes)

    package = tmp_path_factory.mktemp("package") / "model.pt2"
    options = {**INDUCTOR, "post_grad_custom_post_pass": look}
    aoti_compile_and_package(program, package_path=str(package), inductor_configs=options)
    return targets, str(package)


def test_states_are_written_between_the_layers(compiled):
    targets, _ = compiled
    kinds = (aten.cat.default, aten.copy_.default)
    found = [target for target in targets if target in kinds]
    assert found == [*kinds, *kinds]
    assert aten.copy.default not in targets


def test_the_engine_computes_what_the_module_does(compiled):
    given, wanted = arguments(), arguments()
    engine = aoti_load_package(compiled[1])
    for _ in range(2):
        torch.testing.assert_close(engine(*given), Causal()(*wanted))
        for found, state in zip(given[1:], wanted[1:], strict=True):
            assert torch.equal(found, state)


def test_leaves_a_write_whose_result_is_read():
    graph = fx.Graph()
    state, value = graph.placeholder("state"), graph.placeholder("value")
    copy = graph.call_function(aten.copy_.default, (state, value))
    graph.output((graph.call_function(aten.sin.default, (copy,)),))
    before = [*graph.nodes]
    write_early(graph)
    assert [*graph.nodes] == before


def test_writes_after_every_read_although_an_earlier_write_moves():
    graph = fx.Graph()
    x, first, second = (graph.placeholder(name) for name in ("x", "first", "second"))
    new = graph.call_function(aten.sin.default, (x,))
    read = graph.call_function(aten.add.Tensor, (new, first))
    graph.call_function(aten.copy_.default, (second, first))
    graph.call_function(aten.copy_.default, (first, new))
    graph.output((read,))
    write_early(graph)
    graph.lint()
    found = [torch.tensor([value]) for value in (1.0, 2.0, 3.0)]
    (result,) = fx.Interpreter(fx.GraphModule({}, graph)).run(*found)
    sine = torch.tensor([1.0]).sin()
    assert [result, *found[1:]] == [sine + 2.0, sine, torch.tensor([2.0])]


def test_writes_an_input_after_all_inputs():
    graph = fx.Graph()
    x, state, other = (graph.placeholder(name) for name in ("x", "state", "other"))
    graph.call_function(aten.copy_.default, (state, x))
    graph.output((other,))
    write_early(graph)
    assert [node.op for node in graph.nodes] == [*["placeholder"] * 3, "call_function", "output"]


def test_a_state_whose_old_value_is_returned_is_written_where_it_was():
    graph = fx.Graph()
    state, x = graph.placeholder("state"), graph.placeholder("x")
    old = graph.call_function(aten.slice.Tensor, (state, 0, 0, 1))
    graph.call_function(aten.copy_.default, (state, graph.call_function(aten.sin.default, (x,))))
    graph.output((old,))
    before = [node.target for node in graph.nodes]
    write_early(graph)
    assert [node.target for node in graph.nodes] == before
