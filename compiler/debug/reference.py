"""What PyTorch has for every value of a component's program, and the line it comes from."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.compiler.build.program import ComponentProgram, python_line
from vidc.compiler.debug.given import Given
from vidc.compiler.debug.rewire import result_nodes
from vidc.exporters.program import argument_placeholders


class Reference:
    """A component's program, run by PyTorch on a CPU, for which it was exported.

    Args:
        program: it.
        arguments: names of its arguments, in order.
        results: its nodes that go by other names than their own.
        find: gives an argument or a weight by its name.
    """

    def __init__(
        self,
        program: ExportedProgram,
        arguments: Iterable[str],
        results: Mapping[str, fx.Node],
        find: Callable[[str], Tensor],
    ) -> None:
        self._program = program
        self._nodes = {
            node.name: node for node in program.graph.nodes if node.op == "call_function"
        } | dict(results)
        placeholders = argument_placeholders(program)
        self._arguments = {
            node.name: name for node, name in zip(placeholders, arguments, strict=True)
        }
        self._targets = {s.arg.name: s.target for s in program.graph_signature.input_specs}
        self._find = find

    @property
    def names(self) -> Collection[str]:
        """Of the values it knows."""
        return self._nodes.keys()

    def line(self, name: str) -> str | None:
        """The innermost line outside PyTorch that a value comes from, ``file:number: code``."""
        return python_line(self._nodes[name])

    @torch.no_grad()
    def values(self, names: Collection[str]) -> dict[str, Tensor]:
        """These values, some of ``names``."""
        wanted: dict[fx.Node, list[str]] = {}
        for name in names:
            wanted.setdefault(self._nodes[name], []).append(name)
        given = [self._given(node) for node in self._program.graph.find_nodes(op="placeholder")]
        found: dict[fx.Node, Tensor] = {}
        _Watched(self._program.graph_module, wanted, found).run(*given)
        return {name: found[node] for node, called in wanted.items() for name in called}

    def _given(self, node: fx.Node) -> Tensor | None:
        target = self._targets[node.name]
        if target in self._program.constants:
            constant: Tensor = self._program.constants[target]
            return constant
        if not node.users:
            return None
        name = self._arguments[node.name] if target is None else target
        return self._find(name).cpu()


def program_reference(made: ComponentProgram, given: Given) -> Reference:
    """What PyTorch has for the values of a program that a backend compiles."""
    arguments = [spec.name for spec in made.signature.arguments]
    return Reference(made.program, arguments, result_nodes(made), given.find)


class _Watched(fx.Interpreter):
    """Runs a graph and keeps some of its values."""

    def __init__(
        self,
        module: fx.GraphModule,
        wanted: Collection[fx.Node],
        found: dict[fx.Node, Tensor],
    ) -> None:
        super().__init__(module)
        self._wanted = wanted
        self._found = found

    def run_node(self, n: fx.Node) -> Any:
        """One node; a value that is wanted is copied, as later nodes may write over it."""
        value = super().run_node(n)
        if n in self._wanted:
            self._found[n] = value.clone()
        return value
