"""Convolutions of upsampled images are the same without upsampling, in any program."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from vidc.compiler.backends.aoti.convolution_forms import Form
from vidc.compiler.backends.aoti.phases import upsampled_convolution, use_phases

aten = torch.ops.aten


@given(
    images=st.integers(1, 3), inputs=st.integers(1, 4), outputs=st.integers(1, 4),
    height=st.integers(1, 5), width=st.integers(1, 5), biased=st.booleans(), together=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_is_the_convolution_of_the_upsampled_image(
    images, inputs, outputs, height, width, biased, together, seed
):
    """Exactly, because sums of small integers are exact in float32."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator).float()

    x, weight = drawn(images, inputs, height, width), drawn(outputs, inputs, 3, 3)
    bias = drawn(outputs) if biased else None
    found = upsampled_convolution(x, weight, bias, together)
    larger = functional.interpolate(x, scale_factor=2, mode="nearest-exact")
    assert torch.equal(found, functional.conv2d(larger, weight, bias, padding=1))
    assert found.is_contiguous(memory_format=torch.channels_last)


class Upsampled(nn.Module):
    """A convolution after nearest upsampling in float32, as diffusers computes it."""

    def __init__(self, outputs=8, scale=2.0, mode="nearest-exact", **options) -> None:
        super().__init__()
        self.scale, self.mode = scale, mode
        given = {"kernel_size": 3, "padding": 1, **options}
        self.convolution = nn.Conv2d(4, outputs, **given)

    def forward(self, x: Tensor) -> Tensor:
        larger = functional.interpolate(x.float(), scale_factor=self.scale, mode=self.mode)
        return self.convolution(larger.type_as(x))


def exported(dtype, **options) -> tuple[torch.export.ExportedProgram, Tensor]:
    x = torch.randn(2, 4, 6, 5).to(dtype)
    program = torch.export.export(Upsampled(**options).to(dtype), (x,))
    return program.run_decompositions({}), x  # As `export_program` does.


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact"])
@pytest.mark.parametrize("outputs", [8, 128])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", [Form.PHASES, Form.ROWS])
def test_rewrites_a_convolution(mode, outputs, bias, form):
    program, x = exported(torch.float16, mode=mode, outputs=outputs, bias=bias)
    wanted = program.module()(x)
    assert use_phases(program) == 0
    sizes = []
    assert use_phases(program, lambda found: sizes.append(found) or form) == 1
    assert [str(found) for found in sizes] == [f"4 > {outputs}, 2 upsampled images of 6x5"]
    targets = {node.target for node in program.graph.nodes}
    assert targets.isdisjoint((aten._upsample_nearest_exact2d.vec, aten.upsample_nearest2d.vec))
    torch.testing.assert_close(program.module()(x), wanted, rtol=0, atol=4e-3)


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {}),
        (torch.bfloat16, {}),
        (torch.float16, {"scale": 3.0}),
        (torch.float16, {"mode": "bilinear"}),
        (torch.float16, {"kernel_size": 1, "padding": 0}),
        (torch.float16, {"padding": 0}),
        (torch.float16, {"stride": 2}),
        (torch.float16, {"dilation": 2}),
        (torch.float16, {"groups": 2}),
    ],
)
def test_leaves_other_convolutions(dtype, options):
    program, _ = exported(dtype, **options)
    assert use_phases(program, lambda _: Form.PHASES) == 0
    assert len(program.graph.find_nodes(op="call_function", target=aten.conv2d.default)) == 1
