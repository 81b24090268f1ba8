"""Noise is the same whether it is drawn in the session's thread or ahead of it."""

import threading

import torch

from vidc.runtime.noise import NoiseSource, block_noise

SEED, STEPS, SHAPE = 7, 2, (1, 3, 5)
GPU = torch.device("cuda")  # Named only: nothing here is on one.


def filled(source, block):
    target = torch.zeros(STEPS, *SHAPE)
    source.fill(target, block)
    return target


def test_noise_drawn_ahead_is_that_of_its_block():
    source = NoiseSource(SEED, STEPS, SHAPE, GPU)
    for block in range(4):
        assert torch.equal(filled(source, block), block_noise(SEED, block, STEPS, SHAPE))
        source.draw_ahead(block + 1)


def test_another_block_than_the_one_drawn_ahead_is_drawn_when_asked_for():
    source = NoiseSource(SEED, STEPS, SHAPE, GPU)
    source.draw_ahead(1)
    assert torch.equal(filled(source, 5), block_noise(SEED, 5, STEPS, SHAPE))
    assert torch.equal(filled(source, 1), block_noise(SEED, 1, STEPS, SHAPE))


def test_a_repeated_block_gets_the_same_noise():
    source = NoiseSource(SEED, STEPS, SHAPE, GPU)
    source.draw_ahead(2)
    assert torch.equal(filled(source, 2), filled(source, 2))


def test_drawing_ahead_is_the_work_of_another_thread():
    NoiseSource(SEED, STEPS, SHAPE, GPU).draw_ahead(1)
    assert any(thread.name.startswith("vidc-noise") for thread in threading.enumerate())


def test_a_cpu_draws_nothing_ahead():
    source = NoiseSource(SEED, STEPS, SHAPE, torch.device("cpu"))
    source.draw_ahead(1)
    assert source._noise is None
    assert torch.equal(filled(source, 1), block_noise(SEED, 1, STEPS, SHAPE))
