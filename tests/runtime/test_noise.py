"""Noise drawn ahead is the noise of its block."""

import pytest
import torch

from vidc.runtime.noise import NoiseSource, block_noise

SHAPE = (3, 5)


@pytest.fixture
def source(monkeypatch):
    """A source for a GPU; without one, no memory is pinned."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    return NoiseSource(7, 2, SHAPE, torch.device("cuda"))


def filled(source, block):
    target = torch.zeros(2, *SHAPE)
    source.fill(target, block)
    return target


def test_blocks_drawn_ahead_are_those_of_the_seed(source):
    for block in range(6):
        assert torch.equal(filled(source, block), block_noise(7, block, 2, SHAPE))
        source.draw_ahead(*range(block + 1, block + 4))


def test_a_block_can_be_asked_for_again_or_out_of_order(source):
    source.draw_ahead(1, 2)
    for block in (2, 2, 9, 1):
        assert torch.equal(filled(source, block), block_noise(7, block, 2, SHAPE))


def test_a_failed_draw_raises_where_the_noise_is_needed(source, monkeypatch):
    def fail(tensor):
        raise RuntimeError("no memory to pin")

    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)
    source.draw_ahead(1)
    with pytest.raises(RuntimeError, match="no memory to pin"):
        filled(source, 1)
    # The same call can be repeated.
    assert torch.equal(filled(source, 1), block_noise(7, 1, 2, SHAPE))
