"""Refusals of operators without a kernel, called and traced."""

import pytest
import torch

from vidc.plugins.errors import UsageError
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope
from vidc.plugins.ops.ring import ring_attention, ring_write

FP8 = torch.float8_e4m3fn


def write_arguments():
    return {
        "cache": torch.zeros(2, 16, 3, 8),
        "update": torch.ones(2, 5, 3, 8),
        "position": torch.tensor([10]),
        "sink": 3,
    }


def attention_arguments():
    return {
        "query": torch.ones(2, 5, 3, 8),
        "key_cache": torch.ones(2, 16, 3, 8),
        "value_cache": torch.ones(2, 16, 3, 8),
        "valid_length": torch.tensor([9]),
    }


def norm_arguments():
    return {
        "query": torch.ones(2, 5, 24),
        "key": torch.ones(2, 5, 24),
        "query_weight": torch.ones(24),
        "key_weight": torch.ones(24),
        "cos": torch.ones(5, 4),
        "sin": torch.ones(5, 4),
        "heads": 3,
        "eps": 1e-6,
    }


OPERATORS = {
    ring_write: write_arguments, ring_attention: attention_arguments, qk_norm_rope: norm_arguments,
}  # fmt: skip
REFUSALS = [
    (ring_write, "cache", lambda t: t[0], "shape [B, S, H, D], found [16, 3, 8]"),
    (ring_write, "cache", lambda t: t[:, :0], "found [2, 0, 3, 8]"),
    (ring_write, "cache", lambda t: t.to(FP8), "float8_e4m3fn, found float32"),
    (ring_write, "cache", lambda t: t[:, :4], "at most 4 tokens, found 5"),
    (ring_write, "update", lambda t: t[:1], "shape [2, T, 3, 8], found [1, 5, 3, 8]"),
    (ring_write, "update", lambda t: t[..., 1:], "shape [2, T, 3, 8], found [2, 5, 3, 7]"),
    (ring_write, "update", lambda t: t.half(), "float32, found float16"),
    (ring_write, "position", lambda t: t[0], "shape [1], found []"),
    (ring_write, "position", lambda t: t.int(), "int64, found int32"),
    (ring_write, "sink", lambda _: 16, "from 0 to 15, found 16"),
    (ring_write, "sink", lambda _: -1, "from 0 to 15, found -1"),
    (ring_attention, "query", lambda t: t[0], "shape [B, T, H, D], found [5, 3, 8]"),
    (ring_attention, "query", lambda t: t[:, :, 1:], "shape [2, S, 2, 8], found [2, 16, 3, 8]"),
    (ring_attention, "key_cache", lambda t: t.half(), "float32, found float16"),
    (ring_attention, "key_cache", lambda t: t[:, 1:], "shape [2, 15, 3, 8], found [2, 16, 3, 8]"),
    (ring_attention, "value_cache", lambda t: t.double(), "float32, found float64"),
    (ring_attention, "valid_length", lambda t: t.repeat(2), "shape [1], found [2]"),
    (ring_attention, "valid_length", lambda t: t.float(), "int64, found float32"),
    (qk_norm_rope, "query", lambda t: t[0], "shape [B, T, H D], found [5, 24]"),
    (qk_norm_rope, "key", lambda t: t[:, 1:], "shape [2, 5, 24], found [2, 4, 24]"),
    (qk_norm_rope, "key", lambda t: t.half(), "float32, found float16"),
    (qk_norm_rope, "query_weight", lambda t: t[1:], "shape [24], found [23]"),
    (qk_norm_rope, "key_weight", lambda t: t.half(), "float32, found float16"),
    (qk_norm_rope, "cos", lambda t: t[1:], "shape [5, 4], found [4, 4]"),
    (qk_norm_rope, "sin", lambda t: t.half(), "float32, found float16"),
    (qk_norm_rope, "heads", lambda _: 8, "an even head size for width 24, found 8"),
    (qk_norm_rope, "heads", lambda _: 0, "an even head size for width 24, found 0"),
]


@pytest.mark.parametrize("device", ["cpu", "meta"])
@pytest.mark.parametrize(
    ("operator", "argument", "change", "message"),
    REFUSALS,
    ids=[f"{operator.name()}-{argument}-{what}" for operator, argument, _, what in REFUSALS],
)
def test_invalid_argument_is_named(operator, argument, change, message, device):
    taken = OPERATORS[operator]()
    taken[argument] = change(taken[argument])
    moved = [v.to(device) if isinstance(v, torch.Tensor) else v for v in taken.values()]
    with pytest.raises(UsageError) as caught:
        operator(*moved)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"
    assert caught.value.message.startswith(f"{operator.name()}: ")
    assert message in caught.value.message


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name())
def test_valid_arguments_pass(operator):
    operator(*OPERATORS[operator]().values())
