from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vidc.compiler.build.golden import PlayGolden
from vidc.compiler.validate.headroom import LIMIT, Activation, Headroom
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import GateError
from vidc.plugins.names import weights_path


def network(scale: float) -> nn.Module:
    layers = nn.Sequential(nn.Linear(1, 1, bias=False), nn.SiLU(), nn.Linear(1, 1, bias=False))
    layers[0].weight.data.fill_(scale)
    layers[2].weight.data.fill_(1e-3)
    return layers


def test_names_the_layer_with_the_largest_output_of_any_call():
    layers = network(2.0)
    headroom = Headroom([layers])
    assert headroom.largest() == Activation("", 0.0)
    for value in (1.0, -3.0, 0.5):
        layers(torch.tensor([value]))
    assert headroom.require("vae") == headroom.largest() == Activation("0", 6.0)


@pytest.mark.parametrize("value", [LIMIT * 1.01, float("inf"), float("nan")])
def test_refuses_more_than_a_quarter_of_the_range(value):
    layers = network(1.0)
    headroom = Headroom([layers])
    layers(torch.tensor([-value]))
    with pytest.raises(GateError, match=r"of vae reaches .*; in fp16 at most 16376") as caught:
        headroom.require("vae")
    assert caught.value.code == "VIDC-BUILD-HEADROOM"
    assert "precision.vae=bf16" in caught.value.hint


SCENARIO = Scenario(blocks=2, switch_after=1, rollout=False)


def test_golden_data_say_how_far_an_fp16_group_goes(model, tmp_path):
    for name in ("fp32", "fp16"):
        (tmp_path / name).mkdir()
    assert model.golden(tmp_path / "fp32", SCENARIO).activations == {}
    found = model.golden(tmp_path / "fp16", SCENARIO, "fp16").activations
    assert found.keys() == {"vae"}
    assert found["vae"].layer
    assert 1 < found["vae"].value < 100
    stage = PlayGolden(model.config, {"vae": "fp32"}, SCENARIO, (), "cpu", None)
    assert stage.notes(tmp_path / "fp32") == []
    narrow = replace(stage, precisions={"vae": "fp16"})
    assert narrow.notes(tmp_path / "fp16") == [
        f"vae: the largest activation is {found['vae'].value:.4g} in {found['vae'].layer}, "
        "fp16 accepts 16376"
    ]


def test_a_build_refuses_weights_that_leave_no_headroom(model, tmp_path):
    weights = model.inputs["load:vae"] / weights_path("vae")
    scaled = load_file(weights)
    name = next(name for name in scaled if name.endswith("decoder.conv_in.weight"))
    scaled[name] = scaled[name] * 1e6
    (tmp_path / "load" / "weights").mkdir(parents=True)
    save_file(scaled, tmp_path / "load" / weights_path("vae"))
    (tmp_path / "golden").mkdir()
    planted = replace(model, inputs={**model.inputs, "load:vae": tmp_path / "load"})
    with pytest.raises(GateError, match=r"vae\.decoder\.\S+ of vae reaches \d+ in") as caught:
        planted.golden(tmp_path / "golden", SCENARIO, "fp16")
    assert caught.value.code == "VIDC-BUILD-HEADROOM"
    assert planted.golden(tmp_path / "golden", SCENARIO, "fp32").activations == {}
