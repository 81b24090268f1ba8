"""ONNX graphs for GPU backends: weights are inputs, ring operators work in place."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import onnx_ir as ir
from torch.export import ExportedProgram

from vidc.compiler.backends.graph_values import require_clean_graph
from vidc.compiler.backends.plugin_calls import PORTABLE, PluginUse, call_plugins
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.onnx.activations import widen_activations
from vidc.exporters.onnx.constructs import CUSTOM_OPERATOR, PADDED_KEYS, Construct, Parser
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.onnx.functional import Operators
from vidc.exporters.onnx.native_ring import native_form
from vidc.exporters.onnx.plugin_nodes import ACTIVATION_PLUGINS, DOMAIN, PLUGINS, RING_WRITES
from vidc.exporters.program import load_program, quantized_weights
from vidc.plugins.signature import Access, Signature, state_output

_UPDATES = ("TensorScatter", *RING_WRITES)
"""Node types that update a ring in place."""


@dataclass(frozen=True)
class Graph:
    """Written ONNX graph.

    Attributes:
        path: the ``.onnx`` file; weights are inputs that precede those of the signature.
        signature: the engine's signature, with the states that it writes in place.
        ring_attention: names of the attention nodes whose key length is ``valid_length``.
        quantized: the 8-bit weights of linear layers and convolutions; True for those with
            quantized inputs.
        operators: its node types.
        plugins: names of the plugins that it calls, by the names of the nodes.
        notes: remarks for the user.
    """

    path: Path
    signature: Signature
    ring_attention: frozenset[str]
    quantized: Mapping[str, bool] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()
    plugins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def write_graph(
    component: ExportedComponent,
    parser: Parser,
    folder: Path,
    handled: Collection[Construct] = (),
    use: PluginUse = PORTABLE,
    convolutions: Operators = MappingProxyType({}),
) -> Graph:
    """Writes a component's graph for a parser into ``folder``.

    Weights stay outside the graph, so that all engines of a bundle share them. A ring is updated in
    place if none of its blocks straddles the wrap, where slots start over; any other ring is
    updated by a plugin or copied.

    Args:
        component: the exported component.
        parser: the parser that reads the graph.
        folder: an existing folder.
        handled: constructs that the parser misreads and the caller corrects afterwards.
        use: what vidc's plugins compute.
        convolutions: how quantized convolutions are exported, as ``convolution_form`` returns it;
            empty for the default.

    Raises:
        GraphError: ``VIDC-EXPORT-LINT``, the parser would misread the graph.
    """
    program = load_program(component.program)
    quantized = quantized_weights(program)
    signature, operators, notes = ring_form(program, component.signature, component.aligned, use)
    path = folder / f"{component.name}.onnx"
    export_onnx(component.name, program, signature, None, path, {**operators, **convolutions})
    model = ir.load(path)
    if parser == "onnxruntime_cuda":
        widen_activations(model)
        ir.save(model, path)
    taken = (*handled, CUSTOM_OPERATOR) if use else handled
    require_clean_graph(component.name, model, parser, taken)
    nodes = list(model.graph.all_nodes())
    return Graph(
        path,
        signature.with_in_place(_written_in_place(model, signature)),
        frozenset(node.name or "" for node in nodes if PADDED_KEYS.matches(node)),
        quantized,
        frozenset(node.op_type for node in nodes),
        {node.name or "": node.op_type for node in nodes if node.domain == DOMAIN},
        notes,
    )


def ring_form(
    program: ExportedProgram, signature: Signature, aligned: bool, use: PluginUse
) -> tuple[Signature, Operators, tuple[str, ...]]:
    """Returns a component's signature, its operators for a GPU, and notes about copied rings.

    Args:
        program: the component's program; changed in place if plugins compute parts of it.
        signature: the component's signature.
        aligned: True if no block straddles the ring's wrap.
        use: what vidc's plugins compute.

    Raises:
        BuildError, UsageError: as ``call_plugins``.
    """
    signature, notes = call_plugins(program, signature, use)
    signature, operators = native_form(program, signature, aligned and not use.rings)
    plugins = PLUGINS if use.rings else ACTIVATION_PLUGINS
    return signature, {**operators, **plugins}, notes


def _written_in_place(model: ir.Model, signature: Signature) -> frozenset[str]:
    """Returns the names of write-only states and of states that a node updates in place."""
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
