"""Quantized and dequantized keys and values against arithmetic in float64."""

import pytest
import torch

from vidc.plugins.errors import UsageError
from vidc.plugins.ops.quantize_kv import dequantize_kv, quantize_kv
from vidc.plugins.ops.ring import ring_write, ring_write_functional, ring_write_of_bytes

ENDS = {"float8_e4m3fn": 448.0, "int8": 127.0}
FORMATS = {"float8_e4m3fn": torch.float8_e4m3fn, "int8": torch.int8}


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_round_trip_returns_the_nearest_8bit_numbers(dtype, to, center):
    x = drawn(2, 5, 3, 8).to(dtype)
    # Of the first head, values are cut off.
    scale = torch.tensor([1.0, 4.0, 5.0]) / (448 if to == "float8_e4m3fn" else 127)
    mean = drawn(3, 8, seed=1) if center else None
    kept = quantize_kv(x, scale, mean, to)
    assert (kept.dtype, kept.shape) == (FORMATS[to], x.shape)
    whole = x.float() if mean is None else x.float() - mean
    steps = (whole.double() / scale.double()[:, None]).clamp(-(end := ENDS[to]), end)
    nearest = steps.round() if to == "int8" else steps.float().to(FORMATS[to]).double()
    # A value between two numbers may become either.
    close = (steps - steps.round() if to == "int8" else steps * 0).abs() > 0.4999
    assert torch.equal(torch.where(close, kept.double(), nearest), kept.double())
    # Three bits of mantissa, or half a step.
    error = dequantize_kv(kept, scale, "float32")[:, :, 1:] - whole[:, :, 1:]
    slack = whole[:, :, 1:].abs() / 16 + 1e-3 if to == "float8_e4m3fn" else scale[1:, None] / 2
    assert (error.abs() <= slack + 1e-6).all()


def test_fakes_return_shapes_and_dtypes():
    with torch.device("meta"):
        x, scale = torch.empty(1, 4, 2, 8, dtype=torch.bfloat16), torch.empty(2)
        kept = quantize_kv(x, scale, None, "int8")
        assert (kept.shape, kept.dtype) == (x.shape, torch.int8)
        assert dequantize_kv(kept, scale, "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((drawn(1, 2, 3, 8), torch.ones(2), None, "int8"), "scale"),
        ((drawn(1, 2, 3, 8), torch.ones(3), torch.zeros(3, 4), "int8"), "mean"),
        ((drawn(1, 2, 3, 8), torch.ones(3), None, "int4"), "dtype"),
        ((drawn(1, 2, 3, 8), torch.ones(3), None, "int8", "queries"), "operand"),
        ((torch.zeros(1, 2, 3, 8, dtype=torch.int8), torch.ones(3), None, "int8"), "x"),
    ],
)
def test_rejects_invalid_arguments(given, says):
    with pytest.raises(UsageError, match=f"VIDC-KERNEL-ARGUMENT.*vidc::quantize_kv: {says}"):
        quantize_kv(*given)


def test_dequantize_rejects_float_input():
    with pytest.raises(UsageError, match=r"VIDC-KERNEL-ARGUMENT.*vidc::dequantize_kv: x"):
        dequantize_kv(drawn(1, 2, 3, 8), torch.ones(3), "float32")


@pytest.mark.parametrize("dtype", FORMATS.values())
def test_8bit_block_is_written_across_the_wrap(dtype):
    cache = torch.zeros(1, 8, 2, 4).to(dtype)
    update = (drawn(1, 3, 2, 4) * 50).to(dtype)
    position = torch.tensor([7])
    expected = ring_write_functional(cache.float(), update.float(), position, 2)
    functional = ring_write_of_bytes(cache, update, position, 2)
    ring_write(cache, update, position, 2)
    assert functional.dtype == cache.dtype
    for found in (cache, functional):
        assert torch.equal(found.float(), expected)
