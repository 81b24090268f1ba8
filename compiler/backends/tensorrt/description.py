"""What a network consists of, for the bundle: a plan can be read on a GPU alone."""

from collections import Counter
from typing import Any

from vidc.compiler.backends.tensorrt.network import Network, attention_layers
from vidc.compiler.backends.tensorrt.product import Product
from vidc.compiler.backends.tensorrt.quantized import quantized_products, rounding_nodes


def describe_network(network: Network, product: Product) -> dict[str, Any]:
    """A network's layers by kind and by the type they give, its attentions, its products with
    weights in 8 bits and the nodes that only round for these, as JSON values."""
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
    quantized = [
        {
            "name": each.name,
            "weight": each.tensors.weight,
            "weights": each.weights,
            "inputs": each.inputs,
            "computes": each.computes,
        }
        for each in quantized_products(module, definition)
    ]
    return {
        "layers": found,
        "attentions": attentions,
        "quantized": quantized,
        "rounding": sorted(rounding_nodes(module, definition)),
    }


def _name(value: Any) -> str:
    return str(value).rpartition(".")[2].lower()
