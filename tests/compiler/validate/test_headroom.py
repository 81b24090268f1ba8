import pytest
import torch
from torch import nn

from vidc.compiler.validate.headroom import LIMIT, Headroom
from vidc.plugins.errors import GateError


def network(scale: float) -> nn.Module:
    layers = nn.Sequential(nn.Linear(1, 1, bias=False), nn.SiLU(), nn.Linear(1, 1, bias=False))
    layers[0].weight.data.fill_(scale)
    layers[2].weight.data.fill_(1e-3)
    return layers


def test_names_the_layer_with_the_largest_output_of_any_call():
    layers = network(2.0)
    headroom = Headroom([layers])
    assert headroom.largest() == ("", 0.0)
    for value in (1.0, -3.0, 0.5):
        layers(torch.tensor([value]))
    assert headroom.largest() == ("0", 6.0)
    headroom.require("vae")


@pytest.mark.parametrize("value", [LIMIT * 1.01, float("inf"), float("nan")])
def test_refuses_more_than_a_quarter_of_the_range(value):
    layers = network(1.0)
    headroom = Headroom([layers])
    layers(torch.tensor([-value]))
    with pytest.raises(GateError, match=r"of vae reaches .*; in fp16 at most 16376") as caught:
        headroom.require("vae")
    assert caught.value.code == "VIDC-BUILD-HEADROOM"
    assert "precision.vae=bf16" in caught.value.hint
