"""PyTorch values for every node of a program or portable graph, with their Python lines."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.compiler.build.program import ComponentProgram, python_line
from vidc.compiler.config.resolve import Settings
from vidc.compiler.debug.call_inputs import CallInputs
from vidc.compiler.debug.rewire import result_nodes
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.quantize.support import ONNX
from vidc.compiler.quantize.tensors import asked_linears
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.onnx.export import translated_program
from vidc.exporters.onnx.stored import STORED
from vidc.exporters.program import argument_placeholders
from vidc.plugins.ops.quantized_linear import quantized_linear_reference
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
_LINEAR = torch.ops.aten.linear.default
_ROUNDS, _RESTORES = "QuantizeLinear", "DequantizeLinear"


def graph_reference(settings: Settings, made: ComponentProgram, given: CallInputs) -> Reference:
    """Returns PyTorch's reference for a component's portable graph.

    Args:
        settings: settings of the build.
        made: program that the graph was translated from.
        given: inputs and weights of the call.
    """
    program, inputs = translated_program(made.program, made.signature, STORED)
    names = dict(zip(argument_placeholders(program), inputs, strict=True))
    linears = {linear.weight: linear for linear in _linears(settings, made.name, inputs)}
    for node in program.graph.nodes:
        if node.target is _SYMBOLIC:
            _interpret(node)
        elif node.target is _LINEAR and names.get(node.args[1]) in linears:
            node.target = _product(linears[names[node.args[1]]], given.find)
    (nodes,) = program.graph.output_node().args
    # Results have the names of the signature, as in the graph.
    results = dict(zip(made.signature.graph_outputs(), nodes, strict=True))
    return Reference(program, inputs, results, given.find)


def _linears(settings: Settings, component: str, inputs: tuple[str, ...]) -> list[LinearTensors]:
    group = settings.model.components[component]
    quantized = settings.quantized(group)
    if quantized is None:
        return []
    linears = quantized_linears(quantized.recipe, settings.model, ONNX)
    return asked_linears(inputs, group, linears, ONNX)


def _product(tensors: LinearTensors, find: Callable[[str], Tensor]) -> Callable[..., Tensor]:
    """Returns a Linear's quantized matmul; a graph stores the weight's scale alone."""

    def optional(name: str | None) -> Tensor | None:
        return None if name is None else find(name).float()

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        scale, of_input = find(tensors.weight_scale).float(), optional(tensors.input_scale)
        factor, mean = optional(tensors.input_factor), optional(tensors.input_mean)
        if of_input is not None:
            scale, of_input = scale * of_input, of_input.reshape(1)
        return quantized_linear_reference(x, weight, scale, bias, of_input, factor, mean)

    return product


def _interpret(node: fx.Node) -> None:
    """Replaces a symbolic Q or DQ of a ring by a function that PyTorch can run."""
    given: Any
    given, kind, *_ = node.args
    if kind not in (_ROUNDS, _RESTORES):
        raise ValueError(f"{node.name}: PyTorch has no {kind}")
    node.args, node.kwargs = (*given, node.meta["val"].dtype), {}
    node.target = _rounded if kind == _ROUNDS else _restored


def _rounded(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return quantize(x, scale[:, None], dtype)


def _restored(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) * scale[:, None].to(dtype)
