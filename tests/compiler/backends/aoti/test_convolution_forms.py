"""Forms of convolutions: the rule, and that all give the same numbers in any mixture."""

from copy import deepcopy
from dataclasses import replace
from functools import partial
from random import Random

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from vidc.compiler.backends.aoti.convolution_forms import Form, Sizes, by_rule, candidates
from vidc.compiler.backends.aoti.phases import use_phases
from vidc.compiler.backends.aoti.winograd import use_winograd
from vidc.plugins.ops.norm_silu_winograd import norm_silu_winograd

FORMS = {
    1: ["conv3d"],
    2: ["conv3d", "F(2, 3)"],
    3: ["conv3d", "F(3, 3)"],
    5: ["conv3d"],
    6: ["conv3d", "F(2, 3)", "F(3, 3)"],
    12: ["conv3d", "F(2, 3)", "F(3, 3)", "F(4, 3)"],
}


@pytest.mark.parametrize("frames", FORMS)
def test_the_rule_takes_the_largest_tile_that_divides_the_frames(frames):
    sizes = Sizes(32, 32, frames, 8, 8)
    assert list(candidates(sizes)) == FORMS[frames]
    assert by_rule(sizes) == FORMS[frames][-1]


def test_narrow_convolutions_have_one_form_without_the_operator():
    narrow = Sizes(96, 3, 12, 8, 8)
    assert candidates(narrow) == (Form.DIRECT,)
    assert by_rule(narrow) is Form.DIRECT
    assert by_rule(replace(narrow, operator=True)) is Form.F4


@pytest.mark.parametrize(
    ("images", "height", "width", "outputs", "form"),
    [
        (6, 60, 104, 192, Form.PHASES),
        (12, 240, 416, 96, Form.ROWS),
        (28, 18, 32, 1280, Form.UPSAMPLED),
    ],
)
def test_the_rule_takes_phases_of_images_larger_than_the_filters(
    images, height, width, outputs, form
):
    assert by_rule(Sizes(384, outputs, images, height, width, upsampled=True)) is form


def test_tiles_of_forms():
    assert {form: form.tile for form in Form if form.tile} == {Form.F2: 2, Form.F3: 3, Form.F4: 4}


class Decoder(nn.Module):
    """Two residual blocks of a causal decoder with caches, and an upsampling between them."""

    def __init__(self) -> None:
        super().__init__()
        self.gammas = nn.ParameterList([nn.Parameter(torch.ones(32, 1, 1, 1)) for _ in range(4)])
        self.convolutions = nn.ModuleList([nn.Conv3d(32, 32, 3) for _ in range(4)])
        self.larger = nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: Tensor, *pasts: Tensor) -> Tensor:
        for first in (0, 2):
            y = x
            for index in (first, first + 1):
                y = self.convolved(y, index, pasts[index])
            x = x + y
            if first == 0:
                frames = x.transpose(1, 2).flatten(0, 1).float()
                frames = functional.interpolate(frames, scale_factor=2.0, mode="nearest-exact")
                frames = self.larger(frames.type_as(x))
                x = frames.unflatten(0, (len(x), -1)).transpose(1, 2)
        return x

    def convolved(self, x: Tensor, index: int, past: Tensor) -> Tensor:
        y = functional.silu(functional.normalize(x, dim=1) * 32**0.5 * self.gammas[index])
        last = y[:, :, -2:].clone()
        y = functional.pad(torch.cat([past, y], 2), (1, 1, 1, 1, 0, 0))
        past.copy_(last)
        return self.convolutions[index](y)


class InFloat32(fx.Interpreter):
    """Runs a float16 graph in float32: casts to float16 become casts to float32."""

    def call_function(self, target, args, kwargs):
        if target is torch.ops.aten._assert_tensor_metadata.default:
            return None
        names = {name: self.wider(value) for name, value in kwargs.items()}
        return super().call_function(target, tuple(map(self.wider, args)), names)

    def wider(self, value):
        return torch.float32 if value is torch.float16 else value


def arguments(frames: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(frames)
    drawn = partial(torch.randn, generator=generator)
    pasts = [drawn(1, 32, 2, side, side).to(dtype) for side in (4, 4, 8, 8)]
    return [drawn(1, 32, frames, 4, 4).to(dtype), *pasts]


@pytest.fixture(scope="module")
def network() -> Decoder:
    torch.manual_seed(1)
    return Decoder().half()


def rewritten(network: Decoder, frames: int, fused: bool, choose):
    """The network as a program whose weights are its own, and the operators it calls."""
    given = (*arguments(frames, torch.float16),)
    program = torch.export.export(deepcopy(network), given, strict=False).run_decompositions({})
    use_phases(program, choose)
    return program, use_winograd(program, fused, choose)


class Drawn:
    """Draws a form for each convolution, of equal sizes too: all neighbors occur."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.forms: list[Form] = []

    def __call__(self, sizes: Sizes) -> Form:
        self.forms.append(self.random.choice(candidates(sizes)))
        return self.forms[-1]


@pytest.mark.parametrize(("frames", "seed"), [(3, 0), (6, 1), (12, 2), (12, 3)])
def test_every_mixture_of_forms_gives_the_same_numbers_in_float32(network, frames, seed):
    drawn = Drawn(seed)
    program, _ = rewritten(network, frames, False, drawn)
    assert len(drawn.forms) == 5
    module = program.module(check_guards=False)
    for parameter in module.parameters():
        parameter.data = parameter.data.float()
    given, wanted_given = (arguments(frames, torch.float32) for _ in range(2))
    with torch.no_grad():
        found = InFloat32(module).run(*given)
        wanted = deepcopy(network).float()(*wanted_given)
    for actual, expected in zip((found, *given), (wanted, *wanted_given), strict=True):
        assert actual.dtype is torch.float32
        assert (actual - expected).norm() <= 1e-5 * expected.norm()


@pytest.mark.parametrize(("frames", "seed"), [(6, 4), (12, 5), (12, 6)])
def test_every_mixture_of_forms_works_with_the_operator(network, frames, seed):
    """The operator takes products of one tile: between two tiles it takes frames."""
    drawn = Drawn(seed)
    program, operators = rewritten(network, frames, True, drawn)
    tiles = [form.tile for form in drawn.forms if form.tile]
    assert len(set(tiles)) > 1
    assert operators == ("norm_silu_winograd",)
    calls = program.graph.find_nodes(op="call_function", target=norm_silu_winograd)
    assert len(calls) == len(tiles)
    given, wanted_given = (arguments(frames, torch.float16) for _ in range(2))
    module = program.module(check_guards=False)
    with torch.no_grad():
        found, wanted = module(*given), network(*wanted_given)
    for actual, expected in zip((found, *given), (wanted, *wanted_given), strict=True):
        assert (actual - expected).float().norm() <= 4e-3 * expected.float().norm()
