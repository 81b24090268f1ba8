"""``vidc::quantized_linear`` with static scales, against arithmetic in float64."""

import pytest
import torch

from vidc.plugins.errors import UsageError
from vidc.plugins.ops.quantized_linear import quantized_linear

FP8, INT8 = torch.float8_e4m3fn, torch.int8
LARGEST = {FP8: 448.0, INT8: 127.0}
DRAWN = torch.Generator().manual_seed(0)
X, BIAS = torch.randn(2, 5, 16, generator=DRAWN), torch.randn(32, generator=DRAWN)
WEIGHT, MEAN = torch.randn(32, 16, generator=DRAWN), torch.randn(16, generator=DRAWN)
FACTOR = torch.rand(16, generator=DRAWN) + 0.5


def nearest(values, scale, dtype):
    """The quantized numbers: an independent definition of rounding."""
    steps = (values.double() / scale.double()).clamp(-LARGEST[dtype], LARGEST[dtype])
    return (steps.round() if dtype is INT8 else steps.float()).to(dtype)


def given(dtype, inputs=0.5):
    """An 8-bit weight, its scales, and the input's, which cuts off some values."""
    weight_scale = WEIGHT.abs().amax(1) / LARGEST[dtype]
    scale = inputs * X.abs().max() / LARGEST[dtype]
    return nearest(WEIGHT, weight_scale[:, None], dtype), weight_scale, scale


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("prepared", [(None, None), (FACTOR, None), (FACTOR, MEAN)])
def test_multiplies_quantized_values(dtype, prepared):
    factor, mean = prepared
    weight, weight_scale, scale = given(dtype)
    values = (X if mean is None else X - mean) * (1 if factor is None else factor)
    steps = nearest(values, scale, dtype).double() * scale.double()
    expected = steps @ (weight.double() * weight_scale.double()[:, None]).T + BIAS.double()
    found = quantized_linear(X, weight, weight_scale, BIAS, scale, factor, mean)
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


def test_high_precision_input_is_not_quantized():
    weight, weight_scale, _ = given(INT8)
    found = quantized_linear(X, weight, weight_scale, None, None, None, None)
    expected = X.double() @ (weight.double() * weight_scale.double()[:, None]).T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", LARGEST)
def test_16bit_result_is_rounded_once(dtype):
    weight, weight_scale, scale = given(dtype)
    x, bias = X.bfloat16(), BIAS.bfloat16()
    found = quantized_linear(x, weight, weight_scale, bias, scale, None, None)
    exact = quantized_linear(x.float(), weight, weight_scale, bias.float(), scale, None, None)
    assert torch.equal(found, exact.bfloat16())


def test_rejects_mean_without_scale():
    weight, weight_scale, _ = given(INT8)
    with pytest.raises(UsageError, match=r"VIDC-KERNEL-ARGUMENT.*mean.*none without scale"):
        quantized_linear(X, weight, weight_scale, None, None, None, MEAN)


def test_passes_opcheck():
    weight, weight_scale, scale = given(INT8)
    torch.library.opcheck(quantized_linear, (X, weight, weight_scale, BIAS, scale, FACTOR, MEAN))
