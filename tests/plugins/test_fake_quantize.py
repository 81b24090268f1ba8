import pytest
import torch
from operators import FP8, draw

from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.fake_quantize import fake_quantize

X = draw(1)(2, 5, 3, 8)
SCALE, MEAN = torch.tensor([0.01, 0.02, 0.005]), draw(2)(3, 8)


@pytest.mark.parametrize("dtype", [FP8, torch.int8])
def test_returns_the_nearest_8bit_number(dtype):
    largest = 448 if dtype is FP8 else 127
    found = fake_quantize(X, SCALE, MEAN, dtype_name(dtype))
    steps = (found.double() - MEAN.double()) / SCALE.double()[:, None]
    torch.testing.assert_close(steps, steps.to(dtype).double() if dtype is FP8 else steps.round(),
                               rtol=0, atol=0.01)  # fmt: skip
    inside = ((X - MEAN) / SCALE[:, None]).abs() <= largest
    step = (X - MEAN).abs() / 16 + 2.0**-10 * SCALE[:, None] if dtype is FP8 else SCALE[:, None] / 2
    assert ((found - X).abs() <= 1.01 * step)[inside].all()
    assert steps.abs().max() <= largest + 0.01


def test_dynamic_scale_preserves_the_amax():
    found = fake_quantize(X, None, None, "float8_e4m3fn")
    torch.testing.assert_close(found.abs().amax(-1), X.abs().amax(-1))
    assert not torch.equal(found, X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], SCALE, None, "int8"), r"x: expected shape \[B, T, H, D\], found \[5, 3, 8\]"),
        ((X, SCALE[1:], None, "int8"), r"scale: expected shape \[3\], found \[2\]"),
        ((X, SCALE, MEAN.half(), "int8"), "mean: expected float32, found float16"),
        ((X, SCALE, MEAN, "float16"), "dtype: expected float8_e4m3fn or int8, found float16"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(UsageError, match=message) as caught:
        fake_quantize(*arguments)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"


def test_passes_opcheck():
    torch.library.opcheck(fake_quantize, (X, SCALE, MEAN, "int8"))
    torch.library.opcheck(fake_quantize, (X, None, None, "float8_e4m3fn"))
