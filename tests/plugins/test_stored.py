"""What a ring of 8 bits keeps, held to what rounding to 8 bits means."""

import pytest
import torch

from vidc.plugins.errors import UsageError
from vidc.plugins.ring import ring_write, ring_write_functional, ring_write_of_bytes
from vidc.plugins.rounded import rounded
from vidc.plugins.stored import restored, stored

FORMATS = {"float8_e4m3fn": torch.float8_e4m3fn, "int8": torch.int8}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_restored_is_what_rounding_gives(dtype, to, center):
    x = drawn(2, 5, 3, 8).to(dtype)
    # Of the first head, values are cut off.
    scale = torch.tensor([1.0, 4.0, 5.0]) / (448 if to == "float8_e4m3fn" else 127)
    mean = drawn(3, 8, seed=1) if center else None
    kept = stored(x, scale, mean, to)
    assert (kept.dtype, kept.shape) == (FORMATS[to], x.shape)
    found = restored(kept, scale, "float32")
    found = (found if mean is None else found + mean).to(dtype)
    assert torch.equal(found, rounded(x, scale, mean, to))
    # Three bits of mantissa, or half a step.
    whole = x.float() if mean is None else x.float() - mean
    error = restored(kept, scale, "float32")[:, :, 1:] - whole[:, :, 1:]
    slack = whole[:, :, 1:].abs() / 16 + 1e-3 if to == "float8_e4m3fn" else scale[1:, None] / 2
    assert (error.abs() <= slack + 1e-6).all()


def test_shapes_and_dtypes_without_values():
    with torch.device("meta"):
        x, scale = torch.empty(1, 4, 2, 8, dtype=torch.bfloat16), torch.empty(2)
        kept = stored(x, scale, None, "int8")
        assert (kept.shape, kept.dtype) == (x.shape, torch.int8)
        assert restored(kept, scale, "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((drawn(1, 2, 3, 8), torch.ones(2), None, "int8"), "scale"),
        ((drawn(1, 2, 3, 8), torch.ones(3), torch.zeros(3, 4), "int8"), "mean"),
        ((drawn(1, 2, 3, 8), torch.ones(3), None, "int4"), "dtype"),
        ((torch.zeros(1, 2, 3, 8, dtype=torch.int8), torch.ones(3), None, "int8"), "x"),
    ],
)
def test_what_it_does_not_take_is_said(given, says):
    with pytest.raises(UsageError, match=f"VIDC-KERNEL-ARGUMENT.*vidc::stored: {says}"):
        stored(*given)


def test_what_is_no_ring_of_8_bits_is_not_restored():
    with pytest.raises(UsageError, match=r"VIDC-KERNEL-ARGUMENT.*vidc::restored: x"):
        restored(drawn(1, 2, 3, 8), torch.ones(3), "float32")


@pytest.mark.parametrize("dtype", FORMATS.values())
def test_a_block_of_8_bits_is_written_where_it_wraps(dtype):
    cache = torch.zeros(1, 8, 2, 4).to(dtype)
    update = (drawn(1, 3, 2, 4) * 50).to(dtype)
    position = torch.tensor([7])
    expected = ring_write_functional(cache.float(), update.float(), position, 2)
    functional = ring_write_of_bytes(cache, update, position, 2)
    ring_write(cache, update, position, 2)
    assert functional.dtype == cache.dtype
    for found in (cache, functional):
        assert torch.equal(found.float(), expected)
