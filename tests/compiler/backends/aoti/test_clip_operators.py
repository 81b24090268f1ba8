"""GroupNorms and attention over frames by fused operators: the same numbers, and what is left."""

from collections.abc import Callable

import pytest
import torch
from clip_block import HALF, Block, block_inputs, drawn, error, exported, made
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.nn import functional

from vidc.compiler.backends.aoti import group_norms, short_attention
from vidc.compiler.backends.aoti.cuda import REWRITES, for_cuda
from vidc.exporters.parts.spatio_temporal import Conv2d, GroupNorm
from vidc.plugins.ops.group_norm_silu import group_norm_silu
from vidc.plugins.ops.temporal_attention import temporal_attention
from vidc.runtime.weights import CHANNELS_LAST


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Lets the passes rewrite the small tensors of these tests, on this machine."""
    monkeypatch.setattr(group_norms, "LEAST_ELEMENTS", 0)
    monkeypatch.setattr(
        "vidc.compiler.backends.aoti.cuda.move_to_device_pass", lambda program, _: program
    )


def calls(program: ExportedProgram, target: Callable[..., object]) -> int:
    return len(program.graph.find_nodes(op="call_function", target=target))


@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16])
def test_a_block_has_its_numbers(dtype):
    """The rewritten block is as near to float64 as the block in its own dtype is."""
    module, inputs = made(Block(), dtype), block_inputs(dtype)
    program = exported(module, *inputs)
    before = program.module()(*inputs)
    for name, rewrite in REWRITES.items():
        assert rewrite(program) == (name,)
    # Four norms of the residual block with SiLU, and the transformer's without.
    norms = program.graph.find_nodes(op="call_function", target=group_norm_silu)
    assert [node.args[6] for node in norms] == [True] * 4 + [False]
    assert [node.args[1] is not None for node in norms] == [False, True, False, True, False]
    assert calls(program, torch.ops.aten.group_norm.default) == 0
    assert calls(program, temporal_attention) == 1
    # Attention in space is over 42 tokens.
    assert calls(program, torch.ops.aten.scaled_dot_product_attention.default) == 1
    found = program.module()(*inputs)
    wanted = module.double()(*(x.double() for x in inputs))
    assert 0 < error(found, wanted) < 1.3 * error(before, wanted)


class Decoder(nn.Module):
    """Convolution, norm, SiLU and convolution, and a use of the first one's result beside."""

    def __init__(self, beside: bool, bias: bool = True) -> None:
        super().__init__()
        self.first = Conv2d(32, 64, 3, padding=1, bias=bias)
        self.norm = GroupNorm(64, 1e-6)
        self.second = Conv2d(64, 64, 3, padding=1)
        self.beside = beside

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        result = self.second(functional.silu(self.norm(x)))
        return result + x if self.beside else result


@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_takes_the_bias_of_a_convolution_that_nothing_else_reads(beside, bias):
    module, x = made(Decoder(beside, bias)), drawn(2, 32, 5, 6)
    program = exported(module, x)
    assert group_norms.fused_operators(program) == ("group_norm_silu",)
    assert group_norms.use_group_norms(program) == ("group_norm_silu",)
    convolution, _ = program.graph.find_nodes(
        op="call_function", target=torch.ops.aten.conv2d.default
    )
    (norm,) = program.graph.find_nodes(op="call_function", target=group_norm_silu)
    takes = bias and not beside
    assert (norm.args[1] is not None) is takes
    assert (len(convolution.args) > 2 and convolution.args[2] is not None) is (bias and beside)
    found = program.module()(x)
    assert error(found, module.double()(x.double())) < 2e-3


@pytest.mark.parametrize(
    ("module", "shape", "dtype"),
    [
        (GroupNorm(64, 1e-6), (2, 64, 3), torch.float32),
        (nn.GroupNorm(4, 64, affine=False), (2, 64, 3), HALF),
        (nn.GroupNorm(1, 4), (2, 4, 3), HALF),
        (nn.GroupNorm(32, 2592), (2, 2592, 1), HALF),
    ],
    ids=["32 bits", "no weights", "4 channels", "2592 channels"],
)
def test_leaves_norms_that_no_kernel_has(module, shape, dtype):
    program = exported(made(module, dtype), drawn(*shape, dtype=dtype))
    assert group_norms.use_group_norms(program) == ()
    assert calls(program, torch.ops.aten.group_norm.default) == 1


def test_leaves_norms_of_small_tensors(monkeypatch):
    monkeypatch.setattr(group_norms, "LEAST_ELEMENTS", 2 * 64 * 30)
    norm = made(GroupNorm(64, 1e-6))
    for pixels, called in ((29, False), (30, True)):
        program = exported(norm, drawn(2, 64, pixels))
        assert bool(group_norms.fused_operators(program)) is called
        assert bool(group_norms.use_group_norms(program)) is called


class Attention(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.options = options

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return functional.scaled_dot_product_attention(query, key, key, **self.options)


@pytest.mark.parametrize(
    ("query", "key", "options", "dtype"),
    [
        ((2, 3, 33, 64), (2, 3, 33, 64), {}, HALF),
        ((2, 3, 8, 32), (2, 3, 8, 32), {}, HALF),
        ((2, 3, 8, 64), (2, 3, 9, 64), {}, HALF),
        ((2, 3, 8, 64), (2, 3, 8, 64), {"is_causal": True}, HALF),
        ((2, 3, 8, 64), (2, 3, 8, 64), {"scale": 1.0}, HALF),
        ((2, 3, 8, 64), (2, 3, 8, 64), {}, torch.float32),
    ],
)
def test_leaves_attention_that_the_kernel_has_not(query, key, options, dtype):
    inputs = (drawn(*query, dtype=dtype), drawn(*key, dtype=dtype))
    program = exported(Attention(**options), *inputs)
    assert short_attention.fused_operators(program) == ()
    assert short_attention.use_short_attention(program) == ()


@pytest.mark.parametrize("without", [(), ("group_norm_silu",), ("temporal_attention",)])
def test_a_rewrite_can_be_left_out(without):
    program = exported(made(Block()), *block_inputs())
    lowered = for_cuda(program, True, without=without)
    assert set(lowered.fusion.operators) == {*REWRITES} - {*without}
    assert calls(program, group_norm_silu) == (0 if "group_norm_silu" in without else 5)
    assert calls(program, temporal_attention) == (0 if "temporal_attention" in without else 1)
    assert bool(lowered.inductor) is ("group_norm_silu" not in without)


def test_without_kernels_nothing_is_rewritten():
    program = exported(made(Block()), *block_inputs())
    assert for_cuda(program, False).fusion.operators == ()


def test_kernels_of_temporal_convolutions_are_channels_last():
    """They are 3D in the checkpoint and run as 2D ones."""
    program = exported(made(Block()), *block_inputs())
    lowered = for_cuda(program, True)
    name = "resnet.temporal_res_block.conv1.weight"
    assert name in lowered.channels_last
    weight = lowered.program.state_dict[name]
    assert weight.is_contiguous(memory_format=CHANNELS_LAST[5])
    assert weight.squeeze(-1).is_contiguous(memory_format=torch.channels_last)
