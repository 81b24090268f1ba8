"""Intermediate values of a compiled engine, which is rebuilt with them as outputs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from pathlib import Path

import onnx_ir as ir
from torch import Tensor, fx

from vidc.compiler.build.program import ComponentProgram
from vidc.compiler.debug.call_inputs import CallInputs
from vidc.compiler.debug.rebuild import Rebuilder
from vidc.compiler.debug.rewire import part_of, result_nodes, value_name, with_outputs
from vidc.exporters.lowering import FUNCTIONALIZED
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.onnx.functional import Operators
from vidc.exporters.onnx.native_ring import native_form
from vidc.exporters.program import argument_placeholders
from vidc.plugins.arguments import FLOATS
from vidc.plugins.ops.fake_quantize import fake_quantize, fake_quantize_reference
from vidc.plugins.ops.quantize_kv import (
    dequantize_kv,
    dequantize_kv_reference,
    quantize_kv,
    quantize_kv_reference,
)
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d, quantized_conv2d_reference
from vidc.plugins.ops.quantized_linear import quantized_linear, quantized_linear_reference
from vidc.plugins.signature import Signature, state_output
from vidc.runtime.engines import Engine
from vidc.runtime.weights import Weights

_MOST_AXES = 8
_STANDARD: Operators = {
    quantized_linear: quantized_linear_reference,
    quantized_conv2d: quantized_conv2d_reference,
    fake_quantize: fake_quantize_reference,
    quantize_kv: quantize_kv_reference,
    dequantize_kv: dequantize_kv_reference,
}
"""References of the operators of quantized programs, which export as standard ONNX operators."""


class EngineProgram:
    """Program of a component whose engine is rebuilt to return intermediate values.

    Args:
        made: program of the component.
        engine: engine of the bundle.
        rebuilder: builds and runs programs like the bundle's engine.
        given: inputs of the call.
        native: True if the backend compiles the form of the program that ``native_form`` gives, as
            all but ``aoti`` do; reproducers are exported in it.
    """

    def __init__(
        self,
        made: ComponentProgram,
        engine: Engine,
        rebuilder: Rebuilder,
        given: CallInputs,
        native: bool,
    ) -> None:
        self._made = made
        self._engine = engine
        self._rebuilder = rebuilder
        self._given = given
        self._native = native
        placeholders = argument_placeholders(made.program)
        arguments = zip(placeholders, made.signature.arguments, strict=True)
        self._names = {node: spec.name for node, spec in arguments}
        self._results = result_nodes(made)
        self._names |= {node: name for name, node in self._results.items()}
        self._nodes = {self._name(node): node for node in made.program.graph.nodes}
        self.inputs = frozenset(made.signature.graph_inputs())
        self.names = [self._name(node) for node in _computed(made.program.graph) if _is_float(node)]
        # A state's new value comes from its write; the backend chooses its layout.
        states = {state_output(state.name) for state in made.signature.states}
        self.cuts = frozenset(self.names) - states

    def results(self) -> dict[str, Tensor]:
        """Returns the outputs of the bundle's engine."""
        return self._rebuilder.once(self._engine, self._made.signature, self._given.stored)

    def sources(self, name: str) -> Collection[str]:
        """Returns the inputs of a value's node."""
        return [self._name(node) for node in self._nodes[name].all_input_nodes]

    def operator(self, name: str) -> str:
        """Returns the operator and name of the node that computes a value."""
        node = self._nodes[name]
        call = node.args[0] if node.target is getitem else node
        assert isinstance(call, fx.Node)
        target = call.args[0] if call.target is FUNCTIONALIZED else call.target
        return f"{target} {node.name!r}"

    def values(self, names: Collection[str]) -> dict[str, Tensor]:
        """Computes these values with an engine that has them as outputs."""
        marked = [self._nodes[name].name for name in names if name not in self._results]
        found = self._rebuilder.run(with_outputs(self._made, marked), self._given.stored)
        return {n: found[n if n in self._results else value_name(n)] for n in names}

    def part(self, inputs: Sequence[str], output: str) -> "ProgramPart":
        """Extracts the operations between these values."""
        given = [name for name in inputs if name in self.cuts]
        part = part_of(
            self._made, [self._nodes[n].name for n in given], self._nodes[output].name
        )  # fmt: skip
        wanted = output if output in part.signature.graph_outputs() else None
        return ProgramPart(
            part,
            wanted or value_name(self._nodes[output].name),
            {value_name(self._nodes[name].name): name for name in given},
            self._rebuilder, self._given, self._native,
        )  # fmt: skip

    def _name(self, node: fx.Node) -> str:
        return self._names.get(node, node.name)


@dataclass(frozen=True)
class ProgramPart:
    """Part of a component's program.

    Attributes:
        made: the part as a program.
        output: name of its result.
        begins: names of the values that it begins at, by the names of the part's inputs.
        rebuilder: builds and runs programs like the bundle's engine.
        given: inputs of the call.
        native: as for ``EngineProgram``.
    """

    made: ComponentProgram
    output: str
    begins: Mapping[str, str]
    rebuilder: Rebuilder
    given: CallInputs
    native: bool

    @property
    def nodes(self) -> int:
        """Number of operations."""
        return sum(node.op == "call_function" for node in self.made.program.graph.nodes)

    def value(self, given: Mapping[str, Tensor]) -> Tensor:
        """Computes the output with an engine of this part alone."""
        values = {**self.given.stored, **self._begun(given)}
        return self.rebuilder.run(self.made, values)[self.output]

    def save(
        self, path: Path, given: Mapping[str, Tensor], results: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Writes the part as ONNX; returns its inputs and ``results`` in the graph's layout."""
        made, signature = self.made, self.made.signature
        operators = _STANDARD
        if self.native:
            signature, operators = native_form(made.program, signature, made.aligned)
        export_onnx(made.name, made.program, signature, None, path, operators)
        _include_weights(path, signature, self.given.weights)
        values = {**self.given.program, **self._begun(given)}
        taken = {
            name: _laid_out(signature, name, values[name]) for name in signature.graph_inputs()
        }
        state = self.output.removesuffix(state_output(""))
        return taken | {name: _laid_out(signature, state, v) for name, v in results.items()}

    def _begun(self, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: given[value] for name, value in self.begins.items()}


def _laid_out(signature: Signature, name: str, value: Tensor) -> Tensor:
    axes = signature[name].axes if name in signature else None
    return value if axes is None else value.permute(axes)


def _include_weights(path: Path, signature: Signature, weights: Weights) -> None:
    """Turns the weights of a graph from inputs into initializers."""
    model = ir.load(path)
    inputs = frozenset(signature.graph_inputs())
    values = [value for value in model.graph.inputs if value.name not in inputs]
    model.graph.inputs[:] = [value for value in model.graph.inputs if value.name in inputs]
    for value in values:
        value.const_value = ir.tensor(weights[value.name].cpu(), name=value.name)
        model.graph.register_initializer(value)
    ir.save(model, path)


def _computed(graph: fx.Graph) -> list[fx.Node]:
    """Returns the nodes that depend on a program's inputs, in order."""
    found: dict[fx.Node, None] = dict.fromkeys(graph.find_nodes(op="placeholder"))
    for node in graph.nodes:
        if any(source in found for source in node.all_input_nodes):
            found[node] = None
    return list(found)


def _is_float(node: fx.Node) -> bool:
    """Returns True if a node's value is floating-point and can be an output."""
    value = node.meta.get("val")
    return (
        node.op == "call_function"
        and isinstance(value, Tensor)
        and value.dtype in FLOATS
        and value.numel() > 0
        and value.dim() <= _MOST_AXES
    )
