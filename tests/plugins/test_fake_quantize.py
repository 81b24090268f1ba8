import pytest
import torch
from operators import FP8, draw

from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.fake_quantize import fake_quantize

X = draw(1)(2, 5, 3, 8)


@pytest.mark.parametrize("dtype", [FP8, torch.int8])
def test_returns_the_nearest_8bit_number_of_each_token_and_head(dtype):
    largest = 448 if dtype is FP8 else 127
    found = fake_quantize(X, dtype_name(dtype))
    scale = X.abs().amax(-1, keepdim=True).double() / largest
    steps = found.double() / scale
    torch.testing.assert_close(steps, steps.to(dtype).double() if dtype is FP8 else steps.round(),
                               rtol=0, atol=0.01)  # fmt: skip
    step = X.abs() / 16 + 2.0**-10 * scale if dtype is FP8 else scale / 2
    assert ((found - X).abs() <= 1.01 * step).all()


def test_scales_preserve_the_amax():
    found = fake_quantize(X, "float8_e4m3fn")
    torch.testing.assert_close(found.abs().amax(-1), X.abs().amax(-1))
    assert not torch.equal(found, X)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], "int8"), r"x: expected shape \[B, T, H, D\], found \[5, 3, 8\]"),
        ((X, "float16"), "dtype: expected float8_e4m3fn or int8, found float16"),
    ],
)
def test_rejects_invalid_arguments(arguments, message):
    with pytest.raises(UsageError, match=message) as caught:
        fake_quantize(*arguments)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"


def test_passes_opcheck():
    torch.library.opcheck(fake_quantize, (X, "int8"))
