import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.validate.golden import SAMPLES, sample, sample_indices

RING = (32760, 12, 128)
"""Slots, heads and channels of the ring of LongLive 1.3B at a window of 21."""


@given(st.integers(SAMPLES + 1, 10**11))
def test_samples_lie_all_over_a_tensor(count):
    indices = sample_indices(count)
    ends = torch.tensor([-1, count])
    gaps = torch.cat([ends[:1], indices, ends[1:]]).diff()
    assert len(indices) == SAMPLES
    assert gaps.min() >= 1
    assert gaps.max() <= 2 * (count // SAMPLES + 1)


@pytest.mark.parametrize("shape", [RING, (1, 96, 2, 480, 832), (4, 4, 2**25, 2)])
def test_samples_follow_no_stride(shape):
    indices = sample_indices(torch.Size(shape).numel())
    for size, stride in zip(shape, torch.empty(shape, device="meta").stride(), strict=True):
        places = indices // stride % size
        if size <= 256:
            share = torch.bincount(places, minlength=size) / SAMPLES * size
            assert share.min() > 0.5
            assert share.max() < 1.6
        else:
            assert len(places.unique()) > 0.8 * min(size, SAMPLES)


def test_a_small_tensor_is_kept_whole():
    assert torch.equal(sample(torch.arange(SAMPLES)), torch.arange(SAMPLES).float())
    assert len(sample(torch.zeros(2, SAMPLES))) == SAMPLES
