"""Functional programs for ONNX: standard operators only, states returned as outputs."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.nn.functional import linear

from vidc.exporters.lowering import FUNCTIONALIZED, functionalized_arguments
from vidc.exporters.program import argument_placeholders, result_names, weight_names
from vidc.exporters.tracing import tracing
from vidc.plugins.ops.ring import PORTABLE
from vidc.plugins.signature import Signature

Operators = Mapping[torch._ops.OpOverload, Callable[..., Any]]
"""A functional form for each vidc operator. The form of a mutating operator returns the results,
then the mutated tensors."""


def functional_program(
    program: ExportedProgram, signature: Signature, operators: Operators
) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Retraces a program with vidc operators replaced and states returned.

    Weights become inputs, so that an optimizer cannot fold or merge their values.

    Args:
        program: from ``export_program``.
        signature: of its component, with states of the shapes that ``operators`` take.
        operators: forms of vidc operators; others get their portable form.

    Returns:
        The program, and the names of its inputs: the used weights, then
        ``signature.graph_inputs()``. Its outputs are ``signature.graph_outputs()``.
    """
    weights = weight_names(program)
    arguments = zip(signature.arguments, argument_placeholders(program), strict=True)
    inputs = {
        weights[node.name]: node
        for node in program.graph.find_nodes(op="placeholder")
        if node.name in weights and node.users
    }
    examples = [_empty(node) for node in inputs.values()]
    for spec, node in arguments:
        if spec.reads:
            inputs[spec.name] = node
            examples.append(torch.empty(spec.shape, dtype=spec.torch_dtype))
    module = _Functional(program, signature, operators, tuple(inputs.values()))
    with tracing():
        return torch.export.export(module, tuple(examples), strict=False), tuple(inputs)


class _Functional(nn.Module):
    """A program as a module over the tensors it reads."""

    def __init__(
        self,
        program: ExportedProgram,
        signature: Signature,
        operators: Operators,
        inputs: tuple[fx.Node, ...],
    ) -> None:
        super().__init__()
        self.operators = {**PORTABLE, **operators}
        self.program = program
        self.inputs = inputs
        self.results = result_names(program, signature)
        self.returned = [t.name for t in (*signature.outputs, *signature.states) if t.writes]
        self.constants: dict[str, Tensor] = {
            spec.arg.name: program.constants[spec.target]
            for spec in program.graph_signature.input_specs
            if spec.target in program.constants
        }

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Computes the results; ``values`` are in the order of ``inputs``."""
        given = dict(zip(self.inputs, values, strict=True))
        results = _Replacing(self.program.graph_module, self.operators).run(
            *(self._value(node, given) for node in self.program.graph.find_nodes(op="placeholder"))
        )
        named = dict(zip(self.results, results, strict=True))
        return tuple(named[name] for name in self.returned)

    def _value(self, node: fx.Node, given: Mapping[fx.Node, Tensor]) -> Tensor | None:
        if node in given:
            return given[node]
        if node.name in self.constants:
            return self.constants[node.name]
        # An unused weight, or a state whose old values are not read.
        return _empty(node) if node.users else None


class _Replacing(fx.Interpreter):
    """Runs a graph with vidc operators replaced by their functional forms."""

    def __init__(self, module: fx.GraphModule, operators: Operators) -> None:
        super().__init__(module)
        self.operators = operators

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Runs one call; replaces an operator that ONNX lacks."""
        if target is FUNCTIONALIZED:
            (operator,) = args
            results = self.operators[operator](*functionalized_arguments(operator, kwargs))
            # The operator's results (None without any), then the mutated tensors.
            return results if operator._schema.returns else (None, results)
        if target is torch.ops.aten.copy.default:
            tensor, values = args
            return values.to(tensor.dtype).expand(tensor.shape)
        if target is torch.ops.aten.linear.default:
            return _linear(*args)
        return super().call_function(self.operators.get(target, target), args, kwargs)


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Linear layer over rows, which translates to Gemm with the weight as stored.

    With more axes it becomes a matmul with a transposed weight: one copy per engine.
    """
    rows = linear(values.flatten(0, -2), weight, bias)
    return rows.reshape(*values.shape[:-1], -1)


def _empty(node: fx.Node) -> Tensor:
    return torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
