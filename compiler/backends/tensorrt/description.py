"""Description of a network for the bundle, because a plan can only be inspected on a GPU."""

from collections import Counter
from dataclasses import asdict
from typing import Any

from vidc.compiler.backends.tensorrt.network import Network, attention_layers
from vidc.compiler.backends.tensorrt.product import Product
from vidc.compiler.backends.tensorrt.quantized import qdq_nodes, quantized_matmuls


def describe_network(network: Network, product: Product) -> dict[str, Any]:
    """Returns a network's layer counts by type and output dtype, its attention layers, its matmuls
    with 8-bit weights and the nodes that quantize for them, as JSON values."""
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
    }


def _name(value: Any) -> str:
    return str(value).rpartition(".")[2].lower()
