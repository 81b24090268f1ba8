"""Torch-TensorRT converters of the ring's operators to TensorRT layers.

The operators arrive as symbolic ONNX calls, as ``native_ring.py`` makes them.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import torch.onnx.ops
from torch import Tensor

from vidc.compiler.backends.tensorrt.product import Product
from vidc.plugins.ops.ring import ring_slots

SYMBOLIC = torch.ops.onnx_symbolic._symbolic.default
"""Operator ``(inputs, operator, ...)`` that ``torch.onnx.ops.symbolic`` adds to a program."""
CACHE_UPDATE = "TensorScatter"
_ATTENTION = "Attention"
_SCATTER = "ScatterND"
_OPSET = 24


def copied_ring_write(cache: Tensor, update: Tensor, position: Tensor, sink: int) -> Tensor:
    """Implements ``ring_write`` by a copy as a ScatterND; for export only.

    The portable ``index_put`` has a converter that rejects expanded indices.
    """
    batch, tokens = update.shape[:2]
    slots = ring_slots(position, tokens, cache.shape[1], sink)
    rows = torch.arange(batch, dtype=torch.int64)
    pairs = torch.stack(torch.broadcast_tensors(rows[:, None], slots[None, :]), -1)
    return torch.onnx.ops.symbolic(
        _SCATTER, (cache, pairs, update), dtype=cache.dtype, shape=cache.shape, version=_OPSET
    )


@cache
def register(product: Product) -> None:
    """Registers the converters in this process."""
    from torch_tensorrt.dynamo.conversion import dynamo_tensorrt_converter

    module = product.module()

    def convert(context: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        inputs, operator = args[:2]
        return _LAYERS[operator](module, context.net, inputs, name)

    dynamo_tensorrt_converter(
        SYMBOLIC, capability_validator=lambda node, settings: node.args[1] in _LAYERS
    )(convert)


def _cache_update(module: Any, network: Any, inputs: Sequence[Any], name: str) -> Any:
    cache, update, start = inputs
    start = network.add_cast(start, module.int32).get_output(0)
    layer = network.add_kv_cache_update(cache, update, start, module.KVCacheMode.LINEAR)
    layer.name = name
    return layer.get_output(0)


def _attention(module: Any, network: Any, inputs: Sequence[Any], name: str) -> Any:
    """Adds attention over the valid keys: one fused kernel, or decomposed in float32."""
    query, keys, values, *_, lengths = inputs
    # The layer does not scale. Rounded to 16 bits, the factor would bias all scores alike.
    factor = np.full((1, 1, 1, 1), query.shape[-1] ** -0.5, np.float32)
    scaled = network.add_elementwise(
        network.add_cast(query, module.float32).get_output(0),
        network.add_constant(factor.shape, module.Weights(factor)).get_output(0),
        module.ElementWiseOperation.PROD,
    ).get_output(0)
    attention = network.add_attention_v2(
        network.add_cast(scaled, query.dtype).get_output(0),
        keys,
        values,
        module.AttentionNormalizationOp.SOFTMAX,
        module.CausalMaskKind.NONE,
    )
    attention.key_value_lengths = network.add_cast(lengths, module.int32).get_output(0)
    attention.decomposable = query.dtype == module.float32
    attention.name = name
    return attention.get_output(0)


def _scatter(module: Any, network: Any, inputs: Sequence[Any], name: str) -> Any:
    layer = network.add_scatter(*inputs, module.ScatterMode.ND)
    layer.name = name
    return layer.get_output(0)


_LAYERS: Mapping[str, Callable[[Any, Any, Sequence[Any], str], Any]] = {
    CACHE_UPDATE: _cache_update,
    _ATTENTION: _attention,
    _SCATTER: _scatter,
}
