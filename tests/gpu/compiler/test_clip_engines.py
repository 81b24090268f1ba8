"""Engines that call the operators of a clip, beside those that do not and beside PyTorch."""

import pytest
import torch
from clip_block import CHANNELS, FRAMES, Block, drawn, error, exported, made
from safetensors.torch import load_file, save_file
from torch import Tensor

from vidc.compiler.backends.aoti import group_norms
from vidc.compiler.backends.aoti.cuda import REWRITES, for_cuda
from vidc.compiler.backends.aoti.inductor import compile_package, named_constants
from vidc.runtime.weights import CHANNELS_LAST

pytestmark = pytest.mark.usefixtures("library")


class Twice(torch.nn.Module):
    """Two blocks after a convolution, as in the network: all residuals are channels last."""

    def __init__(self) -> None:
        super().__init__()
        self.conv_in = torch.nn.Conv2d(8, CHANNELS, 3, padding=1)
        self.blocks = torch.nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor, time: Tensor, weight: Tensor, token: Tensor) -> tuple[Tensor]:
        x = self.conv_in(x)
        for block in self.blocks:
            x = block(x, time, weight, token)
        return (x,)


@pytest.fixture(scope="module")
def inputs(gpu) -> list[Tensor]:
    shapes = ((2 * FRAMES, 8, 24, 40), (1, 16), (), (2, 8))
    return [drawn(*shape).to(gpu) for shape in shapes]


@pytest.fixture(scope="module")
def exact(gpu, inputs) -> Tensor:
    """Result of PyTorch in float64 from the same 16-bit weights and inputs."""
    module = made(Twice()).double().to(gpu)
    (result,) = module(*(x.double() for x in inputs))
    return result


@pytest.mark.parametrize(
    "without", [(*REWRITES,), ("temporal_attention",), ("group_norm_silu",), ()]
)
def test_engines_have_their_numbers(gpu, inputs, exact, tmp_path, monkeypatch, without):
    monkeypatch.setattr(group_norms, "LEAST_ELEMENTS", 0)
    program = exported(made(Twice()), *(x.cpu() for x in inputs))
    weights = {name: value.detach().clone() for name, value in program.state_dict.items()}
    lowered = for_cuda(program, True, without=without)
    assert set(lowered.fusion.operators) == {*REWRITES} - {*without}
    save_file(named_constants(lowered.program), tmp_path / "constants.safetensors")
    compile_package(lowered.program, tmp_path / "twice.pt2", lowered.inductor)
    engine = torch._C._aoti.AOTIModelPackageLoader(
        str(tmp_path / "twice.pt2"), "model", True, 1, gpu.index
    )
    every = weights | load_file(tmp_path / "constants.safetensors")
    given = {}
    for name in engine.get_constant_fqns():
        value = every[name].to(gpu)
        last = name in lowered.channels_last
        form = CHANNELS_LAST[value.dim()] if last else torch.contiguous_format
        given[name] = value.contiguous(memory_format=form)
    engine.load_constants(given, False, True, True)
    eager = made(Twice()).to(gpu)
    limit = 1.5 * error(eager(*inputs)[0], exact)
    (found,) = engine.boxed_run([*inputs])
    assert 0 < error(found, exact) < limit
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (replayed,) = engine.boxed_run([*inputs])
    replayed.fill_(torch.nan)
    graph.replay()
    assert torch.equal(replayed, found)
