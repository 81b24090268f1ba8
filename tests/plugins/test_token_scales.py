"""``vidc::quantized_linear`` with per-token scales."""

import pytest
import torch

from vidc.plugins.errors import UsageError
from vidc.plugins.ops.quantized_linear import quantized_linear, quantized_tokens
from vidc.plugins.quantize import LARGEST

FP8, INT8 = torch.float8_e4m3fn, torch.int8


def drawn(dtype, *shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return (values * 20).clamp(-LARGEST[dtype], LARGEST[dtype]).to(dtype)


@pytest.mark.parametrize("dtype", [FP8, INT8])
@pytest.mark.parametrize("high", [torch.float32, torch.bfloat16])
def test_each_token_has_its_own_scale(dtype, high):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    # Tokens of very different sizes, which no one scale could hold.
    x = (x * torch.logspace(-6, 6, 10).reshape(2, 5, 1)).to(high)
    weight, scale, bias = drawn(dtype, 32, 16), torch.rand(32) + 0.1, torch.randn(32).to(high)
    found = quantized_linear(x, weight, scale, bias, None, None, None, True)
    assert found.dtype is high
    exact = x.double() @ (weight.double() * scale[:, None].double()).T + bias.double()
    error = (found.double() - exact).norm(dim=-1) / exact.norm(dim=-1)
    assert error.max() < 0.06
    steps, tokens = quantized_tokens(x, None, None, dtype)
    assert (tokens.shape, tokens.dtype) == ((2, 5, 1), torch.float32)
    assert (steps.float().abs().amax(-1) == LARGEST[dtype]).all()


@pytest.mark.parametrize("dtype", [FP8, INT8])
def test_zeros_stay_zero_and_nan_stays_in_its_token(dtype):
    x = torch.zeros(4, 16)
    x[1] = torch.finfo(torch.float32).smallest_normal
    x[2, 3] = torch.nan
    x[3] = 1.0
    weight, scale = drawn(dtype, 32, 16), torch.ones(32)
    found = quantized_linear(x, weight, scale, None, None, None, None, True)
    assert (found[0] == 0).all()
    assert found[[0, 1, 3]].isfinite().all()
    assert found[2].isnan().all()
    assert (found[3] - weight.float().sum(1)).abs().max() < 1e-3 * weight.float().abs().sum(1).max()


def test_factor_and_mean_apply_before_the_scale():
    x = torch.randn(3, 16, generator=torch.Generator().manual_seed(2)) + 4
    factor, mean = torch.rand(16) + 0.5, torch.full((16,), 4.0)
    weight, scale = drawn(INT8, 32, 16), torch.ones(32)
    found = quantized_linear(x, weight, scale, None, None, factor, mean, True)
    plain = quantized_linear((x - mean) * factor, weight, scale, None, None, None, None, True)
    assert torch.equal(found, plain)


def test_rejects_static_scale_with_dynamic():
    x, weight, scale = torch.ones(3, 16), drawn(FP8, 32, 16), torch.ones(32)
    with pytest.raises(UsageError, match=r"VIDC-KERNEL-ARGUMENT.*quantized_linear: scale"):
        quantized_linear(x, weight, scale, None, torch.ones(()), None, None, True)
    with pytest.raises(UsageError, match=r"VIDC-KERNEL-ARGUMENT.*pre_quant_scale"):
        quantized_linear(x, weight, scale, None, None, torch.ones(16), None)
