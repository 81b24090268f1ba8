import math

import pytest
import torch
from svd_clip import OURS, Timed, figures, measured, ratios
from torch import nn

from vidc.compiler.bench.clock import Clock


def test_overhead_is_a_clip_without_its_unet():
    found = figures(100.0, [10.0, 20.0], 4, [15.0, 5.0])
    assert found["unet_ms"] == [10.0, 20.0]
    assert found["decode_ms"] == [20.0]
    assert found["unet_share"] == [0.6]
    assert found["overhead_ms"] == [100 - 4 * 15]
    assert found["encoders_and_sampler_ms"] == [100 - 4 * 15 - 20]


def test_contestants_take_turns_in_both_orders():
    order = []

    def take(name, milliseconds):
        order.append(name)
        return torch.zeros(1), {"clip_ms": [milliseconds], "unet_ms": [1.0, 2.0]}

    contestants = {OURS: lambda: take(OURS, 3.0), "eager": lambda: take("eager", 6.0)}
    latents = {}
    found = measured(contestants, 2, latents)
    assert order == ["eager", OURS, OURS, "eager"]
    assert found[OURS] == {"clip_ms": [3.0, 3.0], "unet_ms": [1.0, 2.0, 1.0, 2.0]}
    assert set(latents) == set(contestants)
    assert ratios(found)["clip_ms_over_eager"] == pytest.approx(0.5)


def test_timed_network_has_a_sample_of_each_call():
    layer = nn.Linear(2, 3)
    layer.config = "settings"
    timed = Timed(layer, Clock(torch.device("cpu")))
    assert timed(torch.zeros(1, 2)).shape == (1, 3)
    timed(torch.zeros(1, 2))
    taken = timed.taken()
    assert len(taken) == 2
    assert all(value > 0 and math.isfinite(value) for value in taken)
    assert timed.taken() == []
    assert timed.config == "settings"
    assert [*timed.parameters()] == [*layer.parameters()]
