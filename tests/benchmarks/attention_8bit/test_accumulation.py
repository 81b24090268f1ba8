"""Sums of a Hopper matrix unit, emulated: exact where nothing lies 13 bits below the largest."""

import json
from pathlib import Path

import pytest
import torch
from attention_8bit import accumulation
from attention_8bit.accumulation import hopper_sum, loss_of_parts, losses, plain_attention, rounded
from attention_8bit.inputs import draw
from attention_8bit.numerics import PLAIN, attend, heads

RESULTS = Path(accumulation.__file__).with_suffix(".json")


def test_a_short_sum_is_exact():
    weights = torch.full((2, 64), 128.0)
    values = torch.full((64, 3), 1.875)
    assert torch.equal(hopper_sum(weights, values), weights @ values)


def test_a_sum_stops_where_a_product_lies_below_its_last_bit():
    """A product of 240 does not change a sum of 2^21, whose last bit is 2^8."""
    weights = torch.full((1, 18720), 128.0)
    values = torch.full((18720, 1), 1.875)
    assert float(hopper_sum(weights, values)) < 0.6 * float(weights @ values)
    assert torch.equal(hopper_sum(weights, values, keys_of_sum=128), weights @ values)
    in_one = float(hopper_sum(weights, values, each=False) / (weights @ values))
    assert 0.98 < in_one <= 1


def test_the_committed_losses_are_computed_again():
    rows = json.loads(RESULTS.read_text())["even"]
    small = [row for row in rows if row["keys"] == 972]
    assert len(small) == len(accumulation.OFFSETS)
    for row in small:
        found = losses(row["keys"], row["offset"])
        assert found.keys() == row["relative_l2"].keys()
        assert all(abs(found[of] - row["relative_l2"][of]) < 1.5e-4 for of in found)


@pytest.mark.parametrize("each", [True, False], ids=["each", "in one"])
def test_attention_to_few_keys_is_that_of_exact_sums(each):
    """The row's maximum moves from block to block, which rescales the sum in the matrix units."""
    for head in heads(draw(8, 640, 2, 64), PLAIN.balance):
        exact = attend(head, PLAIN)
        wanted = rounded(head, exact)
        found = plain_attention(head, each)
        # A number beside a rounding boundary moves by a step of E4M3.
        assert (found - wanted).norm() < 0.02 * wanted.norm()
        assert 0 < (found - exact).norm() < 0.05 * exact.norm()


def test_cutting_off_each_term_agrees_with_the_kernel_of_a_gpu():
    """The measured outputs are in bfloat16, which moves their mean by up to 2e-4."""
    rows = json.loads(RESULTS.read_text())["parts"]
    assert len(rows) == 8
    assert all(abs(row["each"] - row["measured"]) < 2e-4 for row in rows)
    assert all(abs(row["in one"] - row["measured"]) > 6e-4 for row in rows[-2:])
    assert loss_of_parts(9360, 1.0, each=True) == pytest.approx(rows[5]["each"], abs=1e-5)


def test_cutting_off_each_term_agrees_with_what_a_gpu_measured():
    """Attention of cuDNN, whose error grows with the number of keys; the other way's does not."""
    rows = json.loads(RESULTS.read_text())["cudnn"]
    assert [row["keys"] for row in rows] == [4680, 9360, 14040, 18720]
    for row in rows:
        assert abs(row["each"] / row["measured"] - 1) < 0.15
    assert rows[-1]["in one"] < 0.75 * rows[-1]["measured"]
