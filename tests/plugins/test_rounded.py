import pytest
import torch
from operators import FP8, draw

from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import UsageError
from vidc.plugins.rounded import rounded

X = draw(1)(2, 5, 3, 8)
SCALE, MEAN = torch.tensor([0.01, 0.02, 0.005]), draw(2)(3, 8)


@pytest.mark.parametrize("dtype", [FP8, torch.int8])
def test_what_comes_is_a_number_of_8_bits_next_to_what_went_in(dtype):
    largest = 448 if dtype is FP8 else 127
    found = rounded(X, SCALE, MEAN, dtype_name(dtype))
    steps = (found.double() - MEAN.double()) / SCALE.double()[:, None]
    torch.testing.assert_close(steps, steps.to(dtype).double() if dtype is FP8 else steps.round(),
                               rtol=0, atol=0.01)  # fmt: skip
    inside = ((X - MEAN) / SCALE[:, None]).abs() <= largest
    step = (X - MEAN).abs() / 16 + 2.0**-10 * SCALE[:, None] if dtype is FP8 else SCALE[:, None] / 2
    assert ((found - X).abs() <= 1.01 * step)[inside].all()
    assert steps.abs().max() <= largest + 0.01


def test_without_a_scale_the_largest_of_a_head_is_kept():
    found = rounded(X, None, None, "float8_e4m3fn")
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
def test_what_it_does_not_take_is_refused(arguments, message):
    with pytest.raises(UsageError, match=message) as caught:
        rounded(*arguments)
    assert caught.value.code == "VIDC-KERNEL-ARGUMENT"


def test_it_is_an_operator_as_torch_wants_one():
    torch.library.opcheck(rounded, (X, SCALE, MEAN, "int8"))
    torch.library.opcheck(rounded, (X, None, None, "float8_e4m3fn"))
