"""The public code's cache: its slots, and how often its host waits for the device."""

import pytest
import torch
from public_loop.cache import LayerCache, Update


def filled(tokens: int) -> LayerCache:
    """A cache of eight slots, two of them the sink, after passes over ``tokens`` tokens."""
    cache = LayerCache(torch.zeros(1, 8, 1, 1), 2)
    for position in range(2, tokens + 1, 2):
        write(cache, position)
    return cache


def write(cache: LayerCache, position: int, keep_sink: bool = False) -> list[float]:
    """Passes over the two tokens before ``position``; gives the keys that they attend to."""
    tokens = torch.arange(position - 2, position).float().reshape(1, 2, 1, 1)
    slots = cache.place(2, position, keep_sink)
    keys, values = cache.extended(slots, tokens, -tokens)
    assert torch.equal(keys, -values)
    cache.apply(Update(position, slots, tokens[:, slots.skipped :], -tokens[:, slots.skipped :]))
    return keys.flatten().tolist()


def test_the_oldest_tokens_behind_the_sink_go():
    cache = filled(8)
    assert write(cache, 10) == [0, 1, 4, 5, 6, 7, 8, 9]
    assert write(cache, 12) == [0, 1, 6, 7, 8, 9, 10, 11]
    assert torch.equal(cache.keys, -cache.values)


def test_later_passes_over_a_block_write_the_same_slots():
    cache = filled(8)
    first = write(cache, 10)
    assert write(cache, 10) == first
    assert cache.filled.item() == 8
    assert cache.seen.item() == 10


def test_attending_leaves_the_cache_alone():
    cache = filled(8)
    before = cache.keys.clone()
    new = torch.full((1, 2, 1, 1), 99.0)
    keys, _ = cache.extended(cache.place(2, 10, False), new, new)
    assert 99 in keys
    assert torch.equal(cache.keys, before)


def test_a_sink_that_is_kept_is_not_written():
    cache = filled(8)
    cache.keys.fill_(50)
    cache.values.fill_(-50)
    tokens = torch.arange(8.0).reshape(1, 8, 1, 1)
    slots = cache.place(8, 8, True)
    assert (slots.start, slots.end, slots.skipped) == (2, 8, 2)
    keys, _ = cache.extended(slots, tokens[:, slots.skipped :], tokens[:, slots.skipped :])
    assert keys.flatten().tolist() == [50, 50, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize(("position", "waits"), [(10, 7), (8, 4)])
def test_reads_of_the_device(monkeypatch, position, waits):
    """Seven reads in a pass that rolls, four in each later one, as in the public code."""
    cache, reads, item = filled(8), [], torch.Tensor.item
    monkeypatch.setattr(torch.Tensor, "item", lambda tensor: reads.append(1) or item(tensor))
    cache.place(2, position, False)
    assert len(reads) == waits
