"""PyTorch values for every node of a program or portable graph, with their Python lines."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn.functional import linear

from vidc.compiler.build.program import ComponentProgram, python_line
from vidc.compiler.debug.call_inputs import CallInputs
from vidc.compiler.debug.rewire import result_nodes
from vidc.exporters.onnx.export import translated_program
from vidc.exporters.onnx.quantized import ONNXRUNTIME
from vidc.exporters.program import argument_placeholders
from vidc.plugins.quantize import quantize


class Reference:
    """Program of a component, run by PyTorch on a CPU.

    Args:
        program: exported program.
        arguments: names of its arguments, in order.
        results: output nodes by the names of the signature.
        find: returns an argument or weight by name.
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
        """Returns the names of all known values."""
        return self._nodes.keys()

    def line(self, name: str) -> str | None:
        """Returns the innermost source line outside PyTorch, as ``file:number: code``."""
        return python_line(self._nodes[name])

    @torch.no_grad()
    def values(self, names: Collection[str]) -> dict[str, Tensor]:
        """Computes these values, a subset of ``names``."""
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


def program_reference(made: ComponentProgram, given: CallInputs) -> Reference:
    """Returns PyTorch's reference for a program that a backend compiles."""
    arguments = [spec.name for spec in made.signature.arguments]
    return Reference(made.program, arguments, result_nodes(made), given.find)


class _Watched(fx.Interpreter):
    """Interpreter that copies chosen values of a graph."""

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
        """Runs one node; a wanted value is copied, since later nodes may overwrite it."""
        value = super().run_node(n)
        if n in self._wanted:
            self._found[n] = value.clone()
        return value


_SYMBOLIC = torch.ops.onnx_symbolic._symbolic.default


def graph_reference(made: ComponentProgram, given: CallInputs) -> Reference:
    """Returns PyTorch's reference for a component's portable graph.

    Args:
        made: program that the graph was translated from.
        given: inputs and weights of the call.
    """
    program, inputs = translated_program(made.program, made.signature, ONNXRUNTIME)
    for node in program.graph.nodes:
        if node.target is _SYMBOLIC:
            _interpret(node)
    (nodes,) = program.graph.output_node().args
    # Results have the names of the signature, as in the graph.
    results = dict(zip(made.signature.graph_outputs(), nodes, strict=True))
    return Reference(program, inputs, results, given.find)


def _interpret(node: fx.Node) -> None:
    """Replaces a symbolic operator by a function that PyTorch can run."""
    given: Any
    kind: Any
    given, kind, *_ = node.args
    if kind not in _OPERATORS:
        raise ValueError(f"{node.name}: PyTorch has no {kind}")
    names: Any = node.kwargs["attr_keys"]
    integers: Any = node.kwargs["attr_ints"]  # All attributes are integers.
    axis = dict(zip(names, integers, strict=True)).get("axis", 0)
    node.target, node.args = _OPERATORS[kind], tuple(given)
    node.kwargs = {"axis": axis, "dtype": node.meta["val"].dtype}


def _quantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int, dtype: torch.dtype
) -> Tensor:
    scale = _along(scale, x, axis)
    if zero is None:
        return quantize(x, scale, dtype)
    ends = torch.iinfo(dtype)
    return ((x / scale).round() + zero).clamp(ends.min, ends.max).to(dtype)


def _dequantize(
    x: Tensor, scale: Tensor, zero: Tensor | None = None, *, axis: int, dtype: torch.dtype
) -> Tensor:
    values = x.to(dtype) if zero is None else x.to(dtype) - _along(zero, x, axis)
    return values * _along(scale, x, axis)


def _gemm(x: Tensor, weight: Tensor, *, axis: int, dtype: torch.dtype) -> Tensor:
    return linear(x, weight)


def _along(values: Tensor, x: Tensor, axis: int) -> Tensor:
    """Returns values per index of an axis, or one value, to broadcast to a tensor."""
    return values.reshape([-1 if axis == each else 1 for each in range(x.ndim)])


_OPERATORS: Mapping[str, Callable[..., Tensor]] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Gemm": _gemm,
}
