"""Figures that compare the demo in other precisions with float32."""

import math

import pytest
import torch
from demo_model.render import render
from demo_model.world import Clip, parse
from demo_recipes import SCORES, decibels, lost, right


def test_a_prompt_counts_by_its_worst_block():
    reference = [[torch.full((9, 8, 8, 3), 100.0), torch.full((12, 8, 8, 3), 100.0)]] * 2
    errors = (1.0, 5.0), (0.0, 2.0)
    made = [
        [block + error for block, error in zip(video, each, strict=True)]
        for video, each in zip(reference, errors, strict=True)
    ]
    found = decibels(made, reference)
    expected = [20 * math.log10(255 / error) for error in (5.0, 2.0)]
    assert found["prompts"] == pytest.approx(expected)
    assert found["worst"] == pytest.approx(expected[0])
    assert decibels(reference, reference)["worst"] == 100


def test_scores_are_of_the_blocks_before_the_switch():
    before, after = (parse(f"a {color} ring moving up over sand") for color in ("red", "cyan"))
    clip = Clip(before, after, 21)
    video, _ = render([clip], torch.arange(33)[None], (96, 96))
    frames = ((video[0].permute(1, 2, 3, 0) + 1) * 127.5).byte()
    blocks = [*frames.split([9, 12, 12])]
    exact = right([clip], [blocks], 2)
    assert [exact[name]["rate"] for name in SCORES] == [1.0] * 4
    late = right([clip], [[blocks[2][:9], blocks[2]]], 2)
    assert (lost(late, exact)["color"], lost(exact, exact)["color"]) == (100, 0)
