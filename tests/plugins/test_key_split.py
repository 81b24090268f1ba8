"""The choice of tiles with split keys, and the merge of the halves."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidc.plugins.ops.key_split import LEAST_KEYS, half_lengths, merge_halves, split_from
from vidc.plugins.ops.ring import ring_attention_reference

LONGLIVE = 37, 12, 18720, 132
"""Tiles of 128 queries, heads, keys and multiprocessors of an H200."""


def turns(tiles: int, rows: int, processors: int, first: int) -> float:
    """Time in waves over all keys: whole waves, then the split one."""
    halved = 2 * (tiles - first) * rows
    return -(-first * rows // processors) + 0.5 * -(-halved // processors)


def test_longlive_splits_its_last_tiles():
    assert split_from(*LONGLIVE) == 33
    assert turns(37, 12, 132, 33) == 3.5
    assert split_from(110, 12, 18720, 132) == 110  # Ten full turns.
    assert split_from(37, 24, 18720, 132) == 37  # The last turn is three quarters full.


@given(
    tiles=st.integers(1, 200), rows=st.integers(1, 80), processors=st.integers(1, 160),
    slots=st.integers(2, 40_000),
)  # fmt: skip
def test_split_is_never_slower(tiles, rows, processors, slots):
    first = split_from(tiles, rows, slots, processors)
    assert 0 <= first <= tiles
    whole = turns(tiles, rows, processors, tiles)
    if first < tiles:
        assert slots >= LEAST_KEYS
        assert slots % 2 == 0
        assert turns(tiles, rows, processors, first) < whole


@pytest.mark.parametrize("valid", [1, 7, 8, 9, 15, 16])
@pytest.mark.parametrize("batch", [1, 2])
def test_merged_halves_equal_the_whole(valid, batch):
    generator = torch.Generator().manual_seed(valid)
    half, tokens, heads, size = 8, 3, 2, 4

    def draw(rows):
        return torch.randn(batch, rows, heads, size, generator=generator, dtype=torch.float64)

    query, key, value = draw(tokens), draw(2 * half), draw(2 * half)
    length = torch.tensor([valid])
    counts = half_lengths(length, half, batch)
    assert counts.dtype is torch.int32
    assert counts.tolist() == [min(valid, half), max(valid - half, 1)] * batch
    outputs, logsumexps = [], []
    for part, count in enumerate(counts[:2].tolist()):
        keys, values = (t[:, part * half : (part + 1) * half][:, :count] for t in (key, value))
        logits = torch.einsum("bthd,bshd->bhts", query, keys) / size**0.5
        outputs.append(torch.einsum("bhts,bshd->bthd", logits.softmax(-1), values))
        logsumexps.append(logits.logsumexp(-1).float())
    found = merge_halves(torch.stack(outputs, 1), torch.stack(logsumexps, 1), length, half)
    expected = ring_attention_reference(query, key, value, length)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-5)
