"""Parsing of an ONNX graph to a strongly typed network, and the network's description."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import onnx_ir as ir

from vidc.compiler.backends import GraphError
from vidc.compiler.backends.graph_values import values_of
from vidc.compiler.backends.native_graph import Graph
from vidc.compiler.backends.tensorrt.built_layers import Log, new_builder
from vidc.compiler.backends.tensorrt.plugins import require_plugins
from vidc.compiler.backends.tensorrt.product import Product
from vidc.compiler.backends.tensorrt.quantized import (
    qdq_nodes,
    quantized_matmuls,
    require_quantized,
)
from vidc.plugins import loading

VALID_LENGTH = "valid_length"


@dataclass(frozen=True)
class Network:
    """Parsed network, the objects that must outlive it, and its plugins by layer."""

    builder: Any
    definition: Any
    log: Log
    keep: tuple[Any, ...]
    plugins: Mapping[str, str] = field(default_factory=dict)


def parse(component: str, graph: Graph, product: Product) -> Network:
    """Parses a graph to a network.

    Attention over the ring gets the valid length of its keys, which the parser drops, and must
    become one fused kernel in 16 bits; other attention may be decomposed.

    Raises:
        UnavailableError: ``VIDC-ENV-TENSORRT``; as ``require_plugins``.
        GraphError: ``VIDC-TENSORRT-PARSE``, with the component, the node and the parser's reason;
            or the parser dropped an attention; as ``require_plugins``.
        BuildError: ``VIDC-QUANTIZE-COUNT``, the network's quantized linear layers are not the
            graph's.
    """
    module = product.module()
    if graph.plugins:
        require_plugins(component, graph, product)
    log = Log(module)
    builder = new_builder(module, log)
    definition = builder.create_network(_strongly_typed(module))
    parser = module.OnnxParser(definition, log.logger)
    if not parser.parse_from_file(str(graph.path)):
        raise _not_parsed(component, graph, product, parser)
    found = _attend_to_valid_keys(module, definition, graph.ring_attention)
    if found != graph.ring_attention:
        missing = sorted(graph.ring_attention - found)
        raise GraphError(
            "VIDC-TENSORRT-PARSE",
            f"{component}: {product.title} made no attention layer of {missing[0]}, the first of "
            f"{len(missing)}",
            f"use a version of {product.title} that this vidc was tested with",
            component,
            values_of(ir.load(graph.path), missing[0]),
        )
    require_quantized(component, module, definition, graph.quantized)
    return Network(builder, definition, log, (parser,), graph.plugins)


def attention_layers(module: Any, definition: Any) -> list[Any]:
    """Returns all attention layers of a network."""
    found = []
    for index in range(definition.num_layers):
        layer = definition.get_layer(index)
        if layer.type == module.LayerType.ATTENTION_INPUT:
            # The binding returns the base class.
            layer.__class__ = module.IAttentionInputLayer
            found.append(layer.attention)
    return found


def _strongly_typed(module: Any) -> int:
    # TensorRT 11 and TensorRT-RTX only have strongly typed networks, and may lack the flag.
    flag = getattr(module.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _attend_to_valid_keys(module: Any, definition: Any, ring: frozenset[str]) -> frozenset[str]:
    lengths, found = None, set()
    for attention in attention_layers(module, definition):
        query = attention.get_input(0)
        if attention.name in ring:
            lengths = _lengths(module, definition, query.shape[0]) if lengths is None else lengths
            attention.key_value_lengths = lengths
            found.add(attention.name)
        attention.decomposable = attention.name not in ring or query.dtype == module.float32
    return frozenset(found)


def _lengths(module: Any, definition: Any, batch: int) -> Any:
    """Converts the input ``valid_length``, int64 ``[1]``, to int32 ``[batch]``."""
    inputs = {definition.get_input(i).name: i for i in range(definition.num_inputs)}
    given = definition.get_input(inputs[VALID_LENGTH])
    length = definition.add_cast(given, module.int32).get_output(0)
    return definition.add_concatenation([length] * batch).get_output(0)


def _not_parsed(component: str, graph: Graph, product: Product, parser: Any) -> GraphError:
    errors = [parser.get_error(index) for index in range(parser.num_errors)]
    first = errors[0] if errors else None
    node = f" at node {first.node_name()!r} ({first.node_operator()})" if first else ""
    reason = first.desc()[:300] if first else "it gave no reason"
    if (
        first
        and graph.plugins
        and f"vidc::{first.node_operator()}:" in (told := loading.tensorrt_plugin_error())
    ):
        reason = told.partition("\n")[0]
    return GraphError(
        "VIDC-TENSORRT-PARSE",
        f"{component}: {product.title} {product.version()} does not parse its graph{node}: "
        f"{reason}",
        f"use a version of {product.title} that this vidc was tested with; `vidc inspect` on the "
        "exported graph lists what parsers refuse",
        component,
        values_of(ir.load(graph.path), first.node_name()) if first else (),
    )


def describe_network(network: Network, product: Product) -> dict[str, Any]:
    """Returns the description of a network as JSON values.

    It has the number of layers by type and output dtype, the attention layers, the matmuls with
    8-bit weights, the nodes of Q and DQ, and the plugins.
    """
    module, definition = product.module(), network.definition
    layers = [definition.get_layer(index) for index in range(definition.num_layers)]
    kinds = Counter((_name(layer.type), _name(layer.get_output(0).dtype)) for layer in layers)
    found: dict[str, dict[str, int]] = {}
    for (kind, dtype), count in sorted(kinds.items()):
        found.setdefault(kind, {})[dtype] = count
    attentions = [
        {
            "name": attention.name,
            "dtype": _name(attention.get_input(0).dtype),
            "query": list(attention.get_input(0).shape),
            "keys": list(attention.get_input(1).shape),
            "reads_length": attention.key_value_lengths is not None,
            "must_fuse": not attention.decomposable,
        }
        for attention in attention_layers(module, definition)
    ]
    quantized = [asdict(each) for each in quantized_matmuls(module, definition)]
    return {
        "layers": found,
        "attentions": attentions,
        "quantized": quantized,
        "rounding": sorted(qdq_nodes(module, definition)),
        "plugins": dict(network.plugins),
    }


def _name(value: Any) -> str:
    return str(value).rpartition(".")[2].lower()
