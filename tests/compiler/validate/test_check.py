"""Golden data that a bundle cannot be compared with."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from vidc.compiler.validate.check import validate
from vidc.compiler.validate.scenario import QUANTIZED_STAGE, Scenario
from vidc.plugins.errors import GateError
from vidc.runtime import Bundle

SCENARIO = Scenario(blocks=2, switch_after=1, rollout=False)


@pytest.fixture(scope="module")
def golden(model, tmp_path_factory):
    """Golden data of the model in bfloat16."""
    return model.golden(tmp_path_factory.mktemp("golden"), SCENARIO, "bf16")


def judged(model, golden, precision, stages):
    engines = {
        name: SimpleNamespace(precision="bf16" if name.startswith("vae_") else precision)
        for name in model.engines
    }
    weights = {"transformer": SimpleNamespace(source={"random_weights": 1})}
    manifest = SimpleNamespace(name="tiny-cpu", engines=engines, stages=stages, weights=weights)
    playing = model.player()
    return validate(manifest, Bundle(playing.program, playing.resources), golden)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_engines_in_8_bits_are_not_held_to_golden_data_of_no_recipe(model, golden, precision):
    expected = rf"VIDC-VALIDATE-GOLDEN.*tiny-cpu has text_kv in {precision}.*golden:quantized"
    with pytest.raises(GateError, match=expected):
        judged(model, golden, precision, {"golden": "0" * 64})
    assert judged(model, golden, precision, {"golden": "", QUANTIZED_STAGE: ""}).passed


def test_golden_data_of_no_recipe_are_enough_for_high_precision(model, golden):
    assert judged(model, golden, "bf16", {"golden": ""}).passed
    without = replace(golden, eager=None)
    with pytest.raises(GateError, match="VIDC-VALIDATE-GOLDEN"):
        judged(model, without, "bf16", {"golden": ""})
