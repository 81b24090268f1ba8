"""A component's graph for a GPU: weights as inputs, the ring in operators that work in place."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from vidc.compiler.graph_values import require_clean_graph
from vidc.compiler.quantise.programs import found_linears
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.onnx.activations import widen_activations
from vidc.exporters.onnx.constructs import PADDED_KEYS, Construct, Parser
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.onnx.native_ring import native_form
from vidc.exporters.onnx.pad import widen_pads
from vidc.exporters.program import load_program
from vidc.plugins.signature import Access, Signature, state_output


@dataclass(frozen=True)
class Graph:
    """A graph that was written.

    Attributes:
        path: the ``.onnx`` file; weights are inputs before those of the signature.
        signature: of the engine, with the states that it writes in place.
        ring_attention: names of the nodes that attend to as many slots as ``valid_length`` says.
        linears: those in 8 bits, by the tensors that they read.
        operators: kinds of its nodes.
    """

    path: Path
    signature: Signature
    ring_attention: frozenset[str]
    linears: tuple[LinearTensors, ...] = ()
    operators: frozenset[str] = frozenset()


def write_graph(
    component: ExportedComponent,
    parser: Parser,
    folder: Path,
    handled: Collection[Construct] = (),
) -> Graph:
    """Writes a component's graph for a parser into ``folder``.

    Weights stay outside, so that the engines of a bundle share them and none holds any. A ring
    whose blocks never straddle its wrap is written in place; any other is copied.

    Args:
        component: what to write.
        parser: who reads it.
        folder: where to.
        handled: what the caller says to the parser otherwise.

    Raises:
        GraphError: ``VIDC-EXPORT-LINT``, the parser would take it for something else.
    """
    program = load_program(component.program)
    linears = tuple(found_linears(program))
    signature, operators = native_form(program, component.signature, component.aligned)
    path = folder / f"{component.name}.onnx"
    export_onnx(component.name, program, signature, None, path, operators)
    model = ir.load(path)
    if parser == "onnxruntime_cuda":
        widen_pads(model)
        widen_activations(model)
        ir.save(model, path)
    require_clean_graph(component.name, model, parser, handled)
    nodes = list(model.graph.all_nodes())
    return Graph(
        path,
        signature.with_in_place(_written_in_place(model, signature)),
        frozenset(node.name or "" for node in nodes if PADDED_KEYS.matches(node)),
        linears,
        frozenset(node.op_type for node in nodes),
    )


def _written_in_place(model: ir.Model, signature: Signature) -> frozenset[str]:
    """States that nothing reads, and those that are updated where they lie."""
    producers = {value.name: value.producer() for value in model.graph.outputs}

    def updated(name: str) -> bool:
        producer = producers[state_output(name)]
        return producer is not None and producer.op_type == "TensorScatter"

    return frozenset(
        state.name
        for state in signature.states
        if state.access is Access.WRITE
        or (state.access is Access.READ_WRITE and updated(state.name))
    )
