"""Signatures of engines whose 8-bit rings have slots in another order, with padding."""

import pytest
import torch

from vidc.plugins.signature import Access, Role, Rounding, Signature, TensorSpec
from vidc.plugins.transposed_values import padded_slots, stored_at
from vidc.runtime.strict import read

SLOTS = 20
COMPONENT = TensorSpec(
    "ring.v.0", (1, SLOTS, 2, 3), "int8", Role.STATE, Access.READ_WRITE, rounding=Rounding("s")
)
ENGINE = TensorSpec(
    "ring.v.0", (1, 2, 3, 32), "int8", Role.STATE, Access.READ_WRITE, axes=(0, 2, 3, 1),
    rounding=Rounding("s", reordered=True, padding=12),
)  # fmt: skip


@pytest.mark.parametrize(("slots", "padded"), [(1, 16), (16, 16), (17, 32), (972, 976)])
def test_slots_are_padded_to_groups_of_16(slots, padded):
    assert padded_slots(slots) == padded


def test_component_shape_has_no_padding():
    assert ENGINE.component_shape == COMPONENT.component_shape == COMPONENT.shape


@pytest.mark.parametrize("content", [0, 0x7F])
def test_values_are_dequantized_without_padding(content):
    values = torch.arange(SLOTS * 6).reshape(COMPONENT.shape).to(torch.int8)
    state = torch.full(ENGINE.shape, content, dtype=torch.int8)
    state[..., stored_at(torch.arange(SLOTS))] = values.permute(0, 2, 3, 1)
    assert torch.equal(ENGINE.ordered(state), values)
    scales = torch.tensor([0.5, 2.0])
    found = ENGINE.dequantize(state, {"s": scales}.__getitem__)
    assert torch.equal(found, values.float() * scales[:, None])


def test_padding_is_written_to_json_only_where_there_is_some():
    assert ENGINE.to_json()["rounding"]["padding"] == 12
    assert "padding" not in COMPONENT.to_json()["rounding"]
    for spec in (ENGINE, COMPONENT):
        signature = Signature((spec,))
        assert read(signature.to_json(), Signature, "signature") == signature


@pytest.mark.parametrize(("reordered", "padding"), [(True, 16), (True, -1), (False, 1)])
def test_refuses_impossible_padding(reordered, padding):
    with pytest.raises(ValueError, match=f"{padding} slots of padding"):
        Rounding("s", reordered=reordered, padding=padding)


def test_refuses_padding_of_what_is_no_ring():
    rounding = Rounding("s", reordered=True, padding=4)
    with pytest.raises(ValueError, match="only a ring, of 4 axes"):
        TensorSpec("x", (1, 16), "int8", Role.STATE, Access.READ_WRITE, rounding=rounding)
