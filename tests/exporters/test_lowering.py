"""Programs whose own operators were opened up or replaced compute what they did before."""

import pytest
import torch
from torch import Tensor, nn

from vidc.exporters.component import Component
from vidc.exporters.lowering import expand, inline, replace
from vidc.exporters.program import export_program
from vidc.plugins.ops.flash_attention import flash_attention_sm90
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope, qk_norm_rope_reference
from vidc.plugins.ops.ring import ring_attention, ring_write, ring_write_functional
from vidc.plugins.signature import Access, Role, Signature, TensorSpec

SHAPE, RING = (2, 3, 2, 4), (2, 9, 2, 4)
SINK = 2
FUNCTIONALISED = torch.ops.higher_order.auto_functionalized_v2


class Toy(nn.Module):
    def forward(
        self, x: Tensor, position: Tensor, valid_length: Tensor, k: Tensor, v: Tensor
    ) -> tuple[Tensor]:
        ring_write(k, 2 * x, position, SINK)
        ring_write(v, x + 1, position, SINK)
        return (ring_attention(x, k, v, valid_length),)


@pytest.fixture
def program(request):
    dtype = getattr(request, "param", "float32")
    signature = Signature(
        (
            TensorSpec("x", SHAPE, dtype, Role.INPUT),
            TensorSpec("position", (1,), "int64", Role.INPUT),
            TensorSpec("valid_length", (1,), "int64", Role.INPUT),
            TensorSpec("k", RING, dtype, Role.STATE, Access.READ_WRITE),
            TensorSpec("v", RING, dtype, Role.STATE, Access.READ_WRITE),
            TensorSpec("y", SHAPE, dtype, Role.OUTPUT),
        )
    )
    return export_program(Component("toy", Toy(), signature))


def run(program, position: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(position)
    x = torch.randn(SHAPE, generator=generator)
    states = [torch.randn(RING, generator=generator) for _ in "kv"]
    valid = torch.tensor([min(position + 3, 9)])
    (y,) = program.module()(x, torch.tensor([position]), valid, *states)
    return [y, *states]


def called(program) -> set[object]:
    return {node.target for node in program.graph.nodes if node.op == "call_function"}


@pytest.mark.parametrize("position", [0, 1, 6, 7, 1_000_000])
def test_an_inlined_write_writes_what_it_did(program, position):
    expected = run(program, position)
    inline(program, ring_write, ring_write_functional)
    for found, value in zip(run(program, position), expected, strict=True):
        assert torch.equal(found, value)


def test_no_call_of_an_inlined_operator_is_left(program):
    assert FUNCTIONALISED in called(program)
    inline(program, ring_write, ring_write_functional)
    assert FUNCTIONALISED not in called(program)
    assert {torch.ops.aten.index_put.default, ring_attention} <= called(program)


@pytest.mark.parametrize("program", ["bfloat16"], indirect=True)
def test_an_operator_is_replaced_wherever_it_is_called(program):
    replace(program, ring_attention, flash_attention_sm90)
    assert ring_attention not in called(program)
    assert flash_attention_sm90 in called(program)


class Rotated(nn.Module):
    def forward(self, x: Tensor, y: Tensor, weight: Tensor, angles: Tensor) -> tuple[Tensor, ...]:
        query, key = qk_norm_rope(x, 2 * y, weight, weight, angles, angles, 2, 1e-6)
        return query + 1, key


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_expanded_operator_is_what_it_was(dtype):
    rows, heads = (2, 3, 16), (2, 3, 2, 8)
    signature = Signature(
        (
            TensorSpec("x", rows, dtype, Role.INPUT),
            TensorSpec("y", rows, dtype, Role.INPUT),
            TensorSpec("weight", (16,), dtype, Role.INPUT),
            TensorSpec("angles", (3, 4), "float32", Role.INPUT),
            TensorSpec("query", heads, dtype, Role.OUTPUT),
            TensorSpec("key", heads, dtype, Role.OUTPUT),
        )
    )
    program = export_program(Component("rotated", Rotated(), signature))
    given = [torch.randn(spec.shape).to(spec.torch_dtype) for spec in signature.inputs]
    expected = program.module()(*given)
    expand(program, qk_norm_rope, qk_norm_rope_reference)
    assert qk_norm_rope not in called(program)
    assert torch.ops.aten.rms_norm.default in called(program)
    for found, value in zip(program.module()(*given), expected, strict=True):
        assert torch.equal(found, value)
