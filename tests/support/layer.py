"""A module that calls all fused operators, as a model does, for what compiles and exports it."""

import torch
from operators import Ring, on, qkv_arguments
from operators_8bit import arguments as to_8bit_arguments

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static

RING = Ring(batch=1, tokens=70, heads=3, head_dim=64, window=160, sink=40, position=130)


class Layer(torch.nn.Module):
    """Calls them on results of other operations, on views, and on states that it writes."""

    def forward(
        self, qkv, weights, cos, sin, position, keys, values, keys_8bit, values_8bit, key_scale,
        value_scale,
    ):  # fmt: skip
        qkv = qkv + 0.5
        query = qk_norm_rope_ring_write(
            qkv, weights[0], weights[1], cos, sin, position, keys, values, RING.sink, 1e-6
        )
        _, query_scale = qk_norm_rope_ring_write_static(
            qkv, weights[0], weights[1], cos, sin, position, keys_8bit, values_8bit, key_scale,
            value_scale, None, RING.sink, 1e-6, True, True,
        )  # fmt: skip
        hidden = gelu_quantize(query.flatten(2) * 2, "bfloat16")
        mean = hidden[0, 0].float()
        quantized = gelu_quantize(hidden, "float8_e4m3fn", query_scale[0, 0, :1] * 0 + 0.02, mean)
        return hidden * 2, quantized.view(torch.int8) + 0, query_scale


def arguments(device: torch.device) -> list[torch.Tensor]:
    """Arguments of the module."""
    qkv = qkv_arguments(RING, torch.bfloat16, 1)
    ring = to_8bit_arguments(RING, to=torch.int8)
    weights = torch.stack([qkv["query_weight"], qkv["key_weight"]])
    given = {
        "qkv": qkv["qkv"], "weights": weights, "cos": qkv["cos"], "sin": qkv["sin"],
        "position": qkv["position"], "keys": qkv["key_cache"], "values": qkv["value_cache"],
        "keys_8bit": ring["key_cache"], "values_8bit": ring["value_cache"],
        "key_scale": ring["key_scale"], "value_scale": ring["value_scale"],
    }  # fmt: skip
    return list(on(device, given).values())


def same_as_eager(call, device: torch.device) -> None:
    """Holds a compiled form to the module: what it returns, and what it writes."""
    given, other = arguments(device), arguments(device)
    wanted = Layer()(*given)
    found = call(*other)
    for a, b in zip((*wanted, *given), (*found, *other), strict=True):
        assert torch.equal(a, b)
