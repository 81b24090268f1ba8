"""A component's graph for a GPU: weights as inputs, the ring in operators that work in place."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from torch.export import ExportedProgram

from vidc.compiler.backends.aoti.fusion import call_ring_writes
from vidc.compiler.backends.graph_values import require_clean_graph
from vidc.compiler.quantize.programs import found_linears
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.onnx.activations import widen_activations
from vidc.exporters.onnx.constructs import PADDED_KEYS, Construct, Parser
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.onnx.functional import Operators
from vidc.exporters.onnx.native_ring import native_form
from vidc.exporters.onnx.pad import widen_pads
from vidc.exporters.onnx.plugin_ring import PLUGINS, RING_WRITE
from vidc.exporters.program import load_program
from vidc.plugins.signature import Access, Signature, state_output

_UPDATES = ("TensorScatter", RING_WRITE)
"""Kinds of nodes that write a ring where it lies."""


@dataclass(frozen=True)
class Graph:
    """A graph that was written.

    Attributes:
        path: the ``.onnx`` file; weights are inputs before those of the signature.
        signature: of the engine, with the states that it writes in place.
        ring_attention: names of the nodes that attend to as many slots as ``valid_length`` says.
        linears: those in 8 bits, by the tensors that they read.
        operators: kinds of its nodes.
        notes: what a user ought to know of it.
    """

    path: Path
    signature: Signature
    ring_attention: frozenset[str]
    linears: tuple[LinearTensors, ...] = ()
    operators: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def write_graph(
    component: ExportedComponent,
    parser: Parser,
    folder: Path,
    handled: Collection[Construct] = (),
    plugins: bool = False,
) -> Graph:
    """Writes a component's graph for a parser into ``folder``.

    Weights stay outside, so that the engines of a bundle share them and none holds any. A ring
    whose blocks never straddle its wrap is written in place; any other by a plugin, or copied.

    Args:
        component: what to write.
        parser: who reads it.
        folder: where to.
        handled: what the caller says to the parser otherwise.
        plugins: whether the ring is to be in vidc's plugins.

    Raises:
        GraphError: ``VIDC-EXPORT-LINT``, the parser would take it for something else.
    """
    program = load_program(component.program)
    linears = tuple(found_linears(program))
    signature, operators, notes = ring_form(
        program, component.signature, component.aligned, plugins
    )
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
        notes,
    )


def ring_form(
    program: ExportedProgram, signature: Signature, aligned: bool, plugins: bool
) -> tuple[Signature, Operators, tuple[str, ...]]:
    """A component's signature and operators for a GPU, and what of its ring is not as it could be.

    Args:
        program: of the component; changed in place where plugins are called.
        signature: the component's.
        aligned: whether no block straddles the ring's wrap.
        plugins: whether vidc's plugins are called.
    """
    left = call_ring_writes(program) if plugins else ()
    signature, operators = native_form(program, signature, aligned and not plugins)
    notes = tuple(f"the ring of some layers is copied in every pass: {why}" for why in left)
    return signature, {**operators, **PLUGINS} if plugins else operators, notes


def _written_in_place(model: ir.Model, signature: Signature) -> frozenset[str]:
    """States that nothing reads, and those that are updated where they lie."""
    producers = {value.name: value.producer() for value in model.graph.outputs}

    def updated(name: str) -> bool:
        producer = producers[state_output(name)]
        return producer is not None and producer.op_type in _UPDATES

    return frozenset(
        state.name
        for state in signature.states
        if state.access is Access.WRITE
        or (state.access is Access.READ_WRITE and updated(state.name))
    )
