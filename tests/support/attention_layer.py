"""A module that writes a ring of 8 bits and attends to it, as a model does."""

import torch
from operators import Ring, on
from operators_8bit import arguments as to_8bit_arguments
from torch import Tensor

from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit

RING = Ring(batch=1, tokens=70, heads=3, head_dim=64, window=160, sink=40, position=130)


class AttentionLayer(torch.nn.Module):
    """Attends with a block to itself and what the ring holds of others."""

    def forward(
        self, qkv, query_weight, key_weight, cos, sin, position, valid_length, keys, values,
        key_scale, value_scale,
    ):  # fmt: skip
        query, query_scale = qk_norm_rope_ring_write_static(
            qkv + 0.5, query_weight, key_weight, cos, sin, position, keys, values, key_scale,
            value_scale, None, RING.sink, 1e-6, True, True,
        )  # fmt: skip
        by_channel = value_scale[:, None].expand(-1, RING.head_dim).contiguous()
        attended = ring_attention_8bit(
            query, query_scale, keys, values, key_scale, by_channel, by_channel * 0, valid_length,
            "bfloat16",
        )  # fmt: skip
        return (attended * 2,)


def arguments(device: torch.device, of: torch.dtype = torch.int8) -> list[Tensor]:
    """Arguments of the module."""
    taken = to_8bit_arguments(RING, to=of, mean=False)
    taken = {name: value for name, value in taken.items() if isinstance(value, Tensor)}
    position = taken.pop("position")
    caches = [taken.pop(name) for name in ("key_cache", "value_cache", "key_scale", "value_scale")]
    given = [*taken.values(), position, torch.tensor([RING.window]), *caches]
    return list(on(device, dict(enumerate(given))).values())


def same_as_eager(call, device: torch.device) -> None:
    """Holds a compiled form to the module: what it returns, and what it writes."""
    given, other = arguments(device), arguments(device)
    wanted = AttentionLayer()(*given)
    found = call(*other)
    for a, b in zip((*wanted, *given), (*found, *other), strict=True):
        assert torch.equal(a, b)
