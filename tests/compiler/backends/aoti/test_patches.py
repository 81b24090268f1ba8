"""Convolutions of few pixels are the same as matmuls of patches, in any program."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes, by_rule, candidates
from vidc.compiler.backends.aoti.patches import convolutions, convolve_patches, use_patches


@given(
    images=st.integers(1, 3), inputs=st.integers(1, 4), outputs=st.integers(1, 4),
    size=st.tuples(st.integers(3, 6), st.integers(3, 6)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    biased=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_is_the_convolution(images, inputs, outputs, size, kernel, stride, padding, biased, seed):
    """Exactly, because sums of small integers are exact in float32."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator).float()

    x, weight = drawn(images, inputs, *size), drawn(outputs, inputs, *kernel)
    bias = drawn(outputs) if biased else None
    found = convolve_patches(x, weight, bias, stride, padding)
    wanted = functional.conv2d(x, weight, bias, stride, padding)
    assert torch.equal(found, wanted)
    assert found.is_contiguous(memory_format=torch.channels_last)
    sizes = Sizes(inputs, outputs, images, *size, kernel=kernel, stride=stride, padding=padding)
    assert sizes.pixels == wanted[:, 0].numel()


class Convolution(nn.Module):
    """A convolution whose result is the program's."""

    def __init__(self, **options) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(4, 8, **{"kernel_size": 3, "padding": 1, **options})

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(functional.silu(x))


def exported(dtype, side=6, **options) -> tuple[torch.export.ExportedProgram, Tensor]:
    x = torch.randn(2, 4, side, 5).to(dtype)
    program = torch.export.export(Convolution(**options).to(dtype), (x,))
    return program.run_decompositions({}), x


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "filter 3x3, stride 1x1, padding 1x1"),
        ({"bias": False, "stride": 2}, "filter 3x3, stride 2x2, padding 1x1"),
        ({"kernel_size": (3, 1), "padding": (1, 0)}, "filter 3x1, stride 1x1, padding 1x0"),
    ],
)
def test_rewrites_a_chosen_convolution(dtype, options, text):
    program, x = exported(dtype, **options)
    wanted = program.module()(x)
    use_patches(program, convolutions(program))  # By rule, cuDNN convolves small images.
    assert len(convolutions(program)) == 1
    sizes = []
    use_patches(program, convolutions(program), lambda found: sizes.append(found) or Form.PATCHES)
    assert [str(found) for found in sizes] == [f"4 > 8, 2 images of 6x5, {text}"]
    assert not convolutions(program)
    tolerance = torch.finfo(dtype).eps
    torch.testing.assert_close(program.module()(x), wanted, rtol=tolerance, atol=4 * tolerance)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {}),
        (torch.float16, {"dilation": 2}),
        (torch.float16, {"groups": 2}),
    ],
)
def test_leaves_other_convolutions(dtype, options):
    program, _ = exported(dtype, **options)
    use_patches(program, convolutions(program), lambda _: Form.PATCHES)
    assert len(convolutions(program)) == 1


class Called(nn.Module):
    """A convolution with these arguments of ``conv2d``."""

    def __init__(self, *arguments) -> None:
        super().__init__()
        self.weight, self.arguments = nn.Parameter(torch.randn(8, 4, 3, 3).half()), arguments

    def forward(self, x: Tensor) -> Tensor:
        return functional.conv2d(x, self.weight, None, *self.arguments)


def test_one_number_counts_for_both_directions():
    x = torch.randn(2, 4, 6, 5).half()
    program = torch.export.export(Called([2], [1]), (x,)).run_decompositions({})
    wanted = program.module()(x)
    use_patches(program, convolutions(program), lambda _: Form.PATCHES)
    assert not convolutions(program)
    torch.testing.assert_close(program.module()(x), wanted, rtol=0, atol=4e-3)


def test_an_image_without_a_batch_is_left():
    program = torch.export.export(Called(1, 1), (torch.randn(4, 6, 5).half(),))
    use_patches(program, convolutions(program), lambda _: Form.PATCHES)
    assert len(convolutions(program)) == 1


def test_convolutions_that_other_passes_made_are_left():
    program, _ = exported(torch.float16)
    use_patches(program, (), lambda _: Form.PATCHES)
    assert len(convolutions(program)) == 1


@pytest.mark.parametrize(
    ("images", "kernel", "forms"),
    [
        (1, (3, 3), (Form.IMAGES, Form.PATCHES)),
        (1, (1, 1), (Form.IMAGES,)),
        (3, (3, 3), (Form.IMAGES,)),
    ],
)
def test_few_pixels_and_several_taps_have_two_forms(images, kernel, forms):
    sizes = Sizes(64, 64, images, 32, 32, kernel=kernel, padding=(kernel[0] // 2,) * 2)
    assert sizes.pixels == images * 1024
    assert candidates(sizes) == forms
    assert by_rule(sizes) is Form.IMAGES
