"""A program of standard operators that returns its states: the form that ONNX can hold."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.nn.functional import linear

from vidc.exporters.lowering import functionalized_arguments
from vidc.exporters.program import argument_placeholders, result_names, weight_names
from vidc.exporters.tracing import tracing
from vidc.plugins.ops.ring import PORTABLE
from vidc.plugins.signature import Signature

Operators = Mapping[torch._ops.OpOverload, Callable[..., Any]]
"""Own operators, each with a functional form; a mutating one's returns what it returns, and then
the mutated tensors."""


def functional_program(
    program: ExportedProgram, signature: Signature, operators: Operators
) -> tuple[ExportedProgram, tuple[str, ...]]:
    """Traces a program again, with its own operators replaced and with its states returned.

    Weights become inputs, so that an optimizer has no values to fold or merge.

    Args:
        program: what ``export_program`` returns.
        signature: of its component, with states of the shapes that ``operators`` work on.
        operators: forms of own operators; one that is not among them gets its portable form.

    Returns:
        The program, and the names of its inputs: the weights that it uses, then
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
    """A program as a function of the tensors it reads."""

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
        """Takes the tensors that ``inputs`` stand for."""
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
        # An unused weight, or a state whose old values do not matter.
        return _empty(node) if node.users else None


class _Replacing(fx.Interpreter):
    """Runs a graph with functional forms of vidc's operators."""

    def __init__(self, module: fx.GraphModule, operators: Operators) -> None:
        super().__init__(module)
        self.operators = operators

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call, replaced if it is of an operator that ONNX lacks."""
        if target is torch.ops.higher_order.auto_functionalized_v2:
            (operator,) = args
            results = self.operators[operator](*functionalized_arguments(operator, kwargs))
            # The operator's own, None for none, and then the mutated tensors.
            return results if operator._schema.returns else (None, results)
        if target is torch.ops.aten.copy.default:
            tensor, values = args
            return values.to(tensor.dtype).expand(tensor.shape)
        if target is torch.ops.aten.linear.default:
            return _linear(*args)
        return super().call_function(self.operators.get(target, target), args, kwargs)


def _linear(values: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer over rows, which translates to Gemm with the weight as it is stored.

    Of more axes, it would become a product with a transposed weight: a copy in every engine.
    """
    rows = linear(values.flatten(0, -2), weight, bias)
    return rows.reshape(*values.shape[:-1], -1)


def _empty(node: fx.Node) -> Tensor:
    return torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
