"""``vidc::quantized_conv2d`` against a convolution in float64."""

import pytest
import torch
from torch.nn import functional as F

from vidc.plugins.errors import UsageError
from vidc.plugins.ops.quantized_conv2d import (
    ConvolutionArguments,
    quantized_conv2d,
    rows_of_patches,
)

DRAWN = torch.Generator().manual_seed(0)
X, BIAS = torch.randn(2, 8, 9, 12, generator=DRAWN), torch.randn(6, generator=DRAWN)
SCALE = 0.5 * X.abs().max() / 127
"""It cuts off some values."""
CASES = [((3, 3), (1, 1), (1, 1)), ((3, 3), (2, 2), (1, 1)), ((1, 1), (1, 1), (0, 0)),
         ((3, 1), (1, 2), (1, 0))]  # fmt: skip


def given(kernel):
    """A weight ``[out, C, kh, kw]`` in int8, the operator's form of it, and its scales."""
    weight = torch.randint(-127, 128, (6, 8, *kernel), generator=DRAWN, dtype=torch.int8)
    rows = weight.permute(0, 2, 3, 1).reshape(6, -1).contiguous()
    return weight, rows, torch.rand(6, generator=DRAWN) / 100


def expected(weight, weight_scale, stride, padding):
    steps = (X.double() / SCALE.double()).clamp(-127, 127).round() * SCALE.double()
    wide = weight.double() * weight_scale.double()[:, None, None, None]
    return F.conv2d(steps, wide, BIAS.double(), stride, padding)


@pytest.mark.parametrize("case", CASES)
def test_convolves_quantized_values(case):
    kernel, stride, padding = case
    weight, rows, weight_scale = given(kernel)
    found = quantized_conv2d(X, rows, weight_scale, BIAS, SCALE, kernel, stride, padding)
    wanted = expected(weight, weight_scale, stride, padding)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_rows_of_patches_times_the_weight_are_the_convolution(case):
    kernel, stride, padding = case
    weight, rows, weight_scale = given(kernel)
    args = ConvolutionArguments(X, rows, weight_scale, BIAS, SCALE, *case)
    steps = (X / SCALE).clamp(-127, 127).round()
    patches = rows_of_patches(steps, args, 0).double() * SCALE.double()
    product = patches @ (rows.double() * weight_scale.double()[:, None]).T + BIAS.double()
    batch, outputs, height, width = args.output_shape
    found = product.reshape(batch, height, width, outputs).permute(0, 3, 1, 2)
    wanted = expected(weight, weight_scale, stride, padding)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_16bit_result_is_rounded_once():
    _, rows, weight_scale = given((3, 3))
    place = ((3, 3), (1, 1), (1, 1))
    x, bias = X.bfloat16(), BIAS.bfloat16()
    found = quantized_conv2d(x, rows, weight_scale, bias, SCALE, *place)
    exact = quantized_conv2d(x.float(), rows, weight_scale, bias.float(), SCALE, *place)
    assert torch.equal(found, exact.bfloat16())


def test_passes_opcheck():
    _, rows, weight_scale = given((3, 3))
    arguments = (X, rows, weight_scale, BIAS, SCALE, [3, 3], [2, 2], [1, 1])
    torch.library.opcheck(quantized_conv2d, arguments)


@pytest.mark.parametrize(
    ("changed", "argument"),
    [
        ({"x": X[0]}, "x"),
        ({"weight": torch.zeros(6, 8, dtype=torch.int8)}, "weight"),
        ({"weight": torch.zeros(6, 72)}, "weight"),
        ({"weight_scale": torch.zeros(5)}, "weight_scale"),
        ({"bias": BIAS.half()}, "bias"),
        ({"scale": torch.zeros(1)}, "scale"),
        ({"x": X[:, :, :1, :1], "padding": (0, 0)}, "kernel"),
    ],
)
def test_refuses_arguments(changed, argument):
    _, rows, weight_scale = given((3, 3))
    args = ConvolutionArguments(X, rows, weight_scale, BIAS, SCALE, (3, 3), (1, 1), (1, 1))
    with pytest.raises(UsageError, match=rf"VIDC-KERNEL-ARGUMENT.*quantized_conv2d: {argument}"):
        quantized_conv2d(*args._replace(**changed))
