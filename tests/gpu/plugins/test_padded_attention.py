"""The kernel that merges a text's padding against attention to every key in float32."""

import pytest
import torch
from captured import captured

from vidc.plugins.ops.flash_attention import load_kernel
from vidc.plugins.ops.padded_attention import padded_attention
from vidc.plugins.ops.padded_attention_sm90 import padded_attention_sm90

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ERROR = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
"""Limits of twice the rounding error of probabilities and output."""
CASES = [("bfloat16", 128), ("bfloat16", 64), ("float16", 128), ("float16", 64)]
SLOTS = 512
LENGTHS = (1, 2, 63, 64, 65, 79, 80, 81, 127, 128, 129, 160, 161, 257, 511, SLOTS)


@pytest.fixture
def load(attention_cubin):
    def load(dtype, head_dim):
        load_kernel(attention_cubin(dtype, head_dim, "padded_attention_sm90"))
        return DTYPES[dtype]

    return load


def tensors(dtype, head_dim, lengths, tokens=300, slots=SLOTS, heads=5, logits=1.0):
    """Keys and values from each length on repeat the one before."""
    generator = torch.Generator("cuda").manual_seed(1)

    def draw(rows, size=1.0):
        shape = (len(lengths), rows, heads, head_dim)
        return (size * torch.randn(shape, device="cuda", generator=generator)).to(dtype)

    query, key, value = draw(tokens, logits), draw(slots), draw(slots)
    for row, length in enumerate(lengths):
        for each in (key, value):
            each[row, length:] = each[row, length - 1].clone()
    return query, key, value, torch.tensor(lengths, dtype=torch.int32, device="cuda")


def close(output, given):
    """Compares with the operator's reference in float32, which attends to every key."""
    query, key, value, length = given
    expected = padded_attention(query.float(), key.float(), value.float(), length)
    error = (output.float() - expected).norm() / expected.norm()
    assert error.item() <= ERROR[output.dtype]


@pytest.mark.parametrize(("dtype", "head_dim"), CASES)
def test_matches_attention_to_every_key(load, dtype, head_dim):
    for length in LENGTHS:
        given = tensors(load(dtype, head_dim), head_dim, (length,))
        close(padded_attention_sm90(*given), given)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_each_sample_has_its_own_padding(load, head_dim):
    given = tensors(load("bfloat16", head_dim), head_dim, (1, 130, SLOTS))
    close(padded_attention_sm90(*given), given)


@pytest.mark.parametrize("length", [17, 65, 129, 257, 385, SLOTS])
@pytest.mark.parametrize("tokens", [1, 191, 193, 4680])
def test_at_the_sizes_of_longlive(load, tokens, length):
    given = tensors(load("bfloat16", 128), 128, (length,), tokens, heads=12)
    close(padded_attention_sm90(*given), given)


def test_large_logits(load):
    given = tensors(load("bfloat16", 128), 128, (100,), logits=30)
    output = padded_attention_sm90(*given)
    assert output.isfinite().all()
    close(output, given)


def test_padding_that_outweighs_the_prompt(load):
    """Logits are near 0, so that 503 equal keys decide."""
    given = tensors(load("bfloat16", 128), 128, (10,), logits=1e-3)
    output = padded_attention_sm90(*given)
    close(output, given)
    last = given[2][:, -1:].expand_as(output).float()
    assert (output.float() - last).norm() / last.norm() < 0.1


def test_keys_after_the_distinct_ones_do_not_affect_the_output(load):
    query, key, value, length = tensors(load("bfloat16", 128), 128, (100,))
    expected = padded_attention_sm90(query, key, value, length)
    key[:, 100:] = value[:, 100:] = 3e4
    assert torch.equal(padded_attention_sm90(query, key, value, length), expected)


def test_one_graph_serves_every_length(load):
    query, key, value, length = tensors(load("bfloat16", 128), 128, (SLOTS,))
    graph, output = captured(lambda: padded_attention_sm90(query, key, value, length))
    for distinct in (*LENGTHS, *reversed(LENGTHS)):
        length.fill_(distinct)
        output.fill_(torch.nan)
        graph.replay()
        close(output, (query, key, value, length))
