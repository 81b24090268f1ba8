"""Detail of grounds: what the generator drew is found, around objects, and a blur has less."""

import pytest
import torch
from demo_model.damage import blurred
from demo_model.evaluation.detail import detail
from demo_model.render import render
from demo_model.split import Split, sample
from demo_model.textures import DETAIL


@pytest.mark.parametrize("index", range(4))
def test_detail_is_what_was_drawn_whatever_moves_over_it(index):
    clip = render([sample(Split.HELD_OUT, index).clip], 13)[0]
    found = detail(clip)
    assert found == pytest.approx(DETAIL, rel=0.1)
    assert detail(blurred(clip, 2.0)) < found / 3


def test_longer_waves_are_no_detail():
    x = torch.arange(128.0).expand(3, 2, 128, -1)
    for wavelength, deviation in ((4, 0.1), (8, 0.1), (16, 0.0)):
        wave = 0.1 * 2**0.5 * torch.sin(2 * torch.pi * x / wavelength)
        assert detail(wave) == pytest.approx(deviation, abs=1e-3)
