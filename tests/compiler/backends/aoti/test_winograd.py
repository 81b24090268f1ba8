"""Convolutions by Winograd's algorithm are the convolutions, in any program."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensors import empty_tensors
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes
from vidc.compiler.backends.aoti.phases import use_phases
from vidc.compiler.backends.aoti.winograd import fused_operators, use_winograd
from vidc.compiler.backends.aoti.winograd_convolution import (
    convolution_inputs,
    convolution_output,
    is_narrow,
    winograd_products,
)
from vidc.compiler.config.resolve import resolve
from vidc.exporters.component import Component
from vidc.exporters.models import with_weights
from vidc.exporters.parts.wan_vae.streaming import VaeDecode
from vidc.exporters.program import export_program, weight_names
from vidc.plugins.ops.norm_silu_winograd import norm_silu_winograd
from vidc.plugins.ops.winograd_tiles import TILES
from vidc.runtime.weights import CHANNELS_LAST

aten = torch.ops.aten
side = st.integers(0, 2)


@given(
    batch=st.integers(1, 2), tiles=st.integers(1, 3), inputs=st.sampled_from([1, 2, 4, 18]),
    outputs=st.integers(1, 3), height=st.integers(3, 6), width=st.integers(3, 6),
    pads=st.tuples(side, side, side, side), biased=st.booleans(), seed=st.integers(0, 99),
    tile=st.sampled_from(TILES),
)  # fmt: skip
def test_products_are_a_convolution(
    batch, tiles, inputs, outputs, height, width, pads, biased, seed, tile
):
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> Tensor:
        return torch.randint(-8, 9, shape, generator=generator).float()

    # Of small integers, the transforms alone are inexact in float32.
    x, weight = (
        drawn(batch, inputs, tile * tiles + 2, height, width),
        drawn(outputs, inputs, 3, 3, 3),
    )
    bias = drawn(outputs) if biased else None
    products = winograd_products(convolution_inputs(x, tile), weight, pads)
    found = convolution_output(products, bias, batch)
    wanted = functional.conv3d(functional.pad(x, (*pads, 0, 0)), weight, bias)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.0 if tile == 2 else 0.1)


@pytest.mark.parametrize(
    ("outputs", "inputs", "narrow"),
    [(3, 96, True), (3, 26, False), (12, 96, False), (32, 384, False)],
)
def test_narrow_convolutions_have_few_outputs(outputs, inputs, narrow):
    assert is_narrow(outputs, inputs) is narrow


class Convolved(nn.Module):
    """One convolution of a clip that is padded in memory."""

    def __init__(self, **options) -> None:
        super().__init__()
        given = {"kernel_size": 3, **options}
        self.inputs = given.pop("inputs", 32)
        self.convolution = nn.Conv3d(self.inputs, given.pop("outputs", 32), **given)

    def forward(self, x: Tensor) -> Tensor:
        return self.convolution(functional.pad(x[:, : self.inputs], (1, 1, 1, 1, 2, 0)))


def by_rows(_sizes: Sizes) -> Form:
    return Form.ROWS


def convolutions(program) -> tuple[int, int]:
    """Numbers of convolutions over three frames and over one."""
    nodes = [node.target for node in program.graph.nodes]
    return nodes.count(aten.conv3d.default), nodes.count(aten.conv2d.default)


@pytest.mark.parametrize(
    ("frames", "dtype", "options"),
    [
        (5, torch.float16, {}),
        (4, torch.bfloat16, {}),
        (4, torch.float32, {}),
        (4, torch.float16, {"outputs": 4}),
        (4, torch.float16, {"inputs": 3}),
        (4, torch.float16, {"stride": (1, 2, 2)}),
        (4, torch.float16, {"dilation": (1, 2, 2)}),
        (4, torch.float16, {"groups": 2}),
        (4, torch.float16, {"padding": 1}),
        (4, torch.float16, {"kernel_size": (3, 1, 1)}),
    ],
)
def test_leaves_other_convolutions(frames, dtype, options):
    x = torch.zeros(1, 32, frames, 8, 8, dtype=dtype)
    program = torch.export.export(Convolved(**options).to(dtype), (x,))
    assert use_winograd(program, fused=True) == ()
    assert convolutions(program) == (1, 0)


@pytest.mark.parametrize("bias", [False, True])
def test_rewrites_a_convolution_alone(bias):
    x = torch.randn(2, 32, 4, 5, 6)
    program = torch.export.export(Convolved(bias=bias).half(), (x.half(),))
    wanted = program.module()(x.half())
    assert use_winograd(program, fused=True) == ()
    assert convolutions(program) == (0, 6)
    torch.testing.assert_close(program.module()(x.half()), wanted, rtol=0, atol=4e-3)


def test_rewrites_a_convolution_that_reads_another():
    x = torch.randn(1, 32, 8, 7, 8, generator=torch.Generator().manual_seed(0)).half()
    module = nn.Sequential(nn.Conv3d(32, 32, 3), nn.Conv3d(32, 32, 3))
    program = torch.export.export(module.half(), (x,))
    wanted = program.module()(x)
    assert use_winograd(program, fused=True) == ()
    assert convolutions(program)[0] == 0
    torch.testing.assert_close(program.module()(x), wanted, rtol=0, atol=4e-3)


@pytest.fixture(scope="module")
def part():
    tiny = resolve("tiny", environ={}).model.parts["vae"]
    small = replace(tiny.config, base_dim=32, res_blocks=1)
    return replace(tiny, config=small, height=16, width=16)


@pytest.fixture(scope="module")
def weights(part):
    return {name: each.load() for name, each in part.random_weights(1).items()}


def component(part, precision: str) -> Component:
    return part.components(part.network(precision))["vae_decode"]


@pytest.fixture(scope="module")
def exported(part):
    """Exports a component in float16, once; returns a copy to rewrite."""
    components = part.components(part.network("fp16"))

    @cache
    def export(name):
        return export_program(components[name])

    return lambda name: deepcopy(export(name))


def with_values(program, weights, channels_last=False):
    """The module of a program of weights in float16."""
    module = program.module(check_guards=False)
    parameters = dict(module.named_parameters())
    for weight in weight_names(program).values():
        value = weights[weight.removeprefix("vae.")].half()
        if channels_last and value.dim() in CHANNELS_LAST:
            value = value.contiguous(memory_format=CHANNELS_LAST[value.dim()])
        parameters[weight].data = value
    return module


def decoded(module, part, dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Frames of two blocks in a row, and the caches after them."""
    generator = torch.Generator().manual_seed(3)
    caches = [
        torch.zeros(state.shape, dtype=dtype) for state in component(part, "fp32").signature.states
    ]
    frames = []
    with torch.inference_mode():
        for _ in range(2):
            (made,) = module(torch.randn(part.latent_shape, generator=generator), *caches)
            frames.append(made)
    return frames, caches


@pytest.fixture(scope="module")
def exact(part, weights):
    network = with_weights(part.network("fp32"), weights)
    return decoded(part.components(network)["vae_decode"].module, part, torch.float32)


def error(found: Tensor, wanted: Tensor) -> float:
    return ((found.float() - wanted).norm() / wanted.norm()).item()


@pytest.fixture(scope="module")
def worst(part, weights, exact):
    """Computes the largest error of a program's frames and caches."""

    def compute(program):
        frames, caches = decoded(with_values(program, weights), part, torch.float16)
        return max(map(error, (*frames, *caches), (*exact[0], *exact[1])))

    return compute


@pytest.fixture(scope="module")
def plain(exported, worst):
    """Error of the program before it is rewritten."""
    return worst(exported("vae_decode"))


@pytest.mark.parametrize(("fused", "calls"), [(False, 0), (True, 21)])
def test_decodes_as_the_program_did(exported, worst, plain, fused, calls):
    """With Winograd's algorithm and convolutions of images before they are upsampled."""
    program = exported("vae_decode")
    assert fused_operators(program) == ("norm_silu_winograd",)
    assert use_phases(program, by_rows) == 3
    assert bool(use_winograd(program, fused)) is fused
    # Of 26 convolutions, 5 are not 3x3x3. Tiles of three frames take 5 products, 12 times, and
    # tiles of four take 6, 8 times; the last one is narrow, and is left without the operator. Of 5
    # over one frame, 3 are of upsampled images, with two convolutions of each.
    direct = 5 if fused else 6
    assert convolutions(program) == (direct, 2 + 3 * 2 + 12 * 5 + 8 * 6)
    found = program.graph.find_nodes(op="call_function", target=norm_silu_winograd)
    assert len(found) == calls
    assert plain < 3e-3
    assert worst(program) < 1.5 * plain


def test_chunks_of_frames_change_no_bit(part, weights, exported):
    """An operator of a later chunk reads the activations that an earlier one leaves."""
    signature, found = component(part, "fp16").signature, []
    decode = VaeDecode(part.config, part.network("fp16"), torch.float16, first=False, chunk=4)
    in_chunks = export_program(Component("vae_decode", decode, signature))
    for program in (exported("vae_decode"), in_chunks):
        use_phases(program, by_rows)
        assert use_winograd(program, fused=True)
        found.append(decoded(with_values(program, weights), part, torch.float16))
    (frames, caches), (chunked, kept) = found
    for whole, parts in zip((*frames, *caches), (*chunked, *kept), strict=True):
        assert torch.equal(whole, parts)


class Contiguous(TorchDispatchMode):
    """Holds the arguments of the fused operator to what its kernel takes."""

    calls = 0

    def __torch_dispatch__(self, operator, types, arguments=(), options=None):
        if operator is norm_silu_winograd:
            self.calls += 1
            given = [each for each in arguments if isinstance(each, Tensor)]
            assert all(each.is_contiguous() for each in given), [each.stride() for each in given]
        return operator(*arguments, **(options or {}))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("name", "calls"), [("vae_decode", 21), ("vae_encode", 13)])
def test_the_operator_gets_contiguous_tensors(part, weights, exported, name, calls, channels_last):
    program = exported(name)
    use_phases(program, by_rows)
    use_winograd(program, fused=True)
    module = with_values(program, weights, channels_last)
    signature = part.components(part.network("fp16"))[name].signature
    arguments = empty_tensors(signature.arguments)
    with torch.inference_mode(), Contiguous() as watched:
        module(*arguments)
    assert watched.calls == calls
