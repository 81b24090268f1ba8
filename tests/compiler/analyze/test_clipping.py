"""Values beyond a calibration's ranges, against sums by hand, and the refusal of too many."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from modelopt_here import needs_modelopt
from outlier import recipe_of

from vidc.compiler.build.calibration_rollouts import scenario
from vidc.compiler.config.recipe import AttentionFormat, LinearFormat
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.arithmetic import DTYPES, LARGEST, scale_of
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.clipping import OF_LINEARS, OF_RINGS, Clipping
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.validate.reference import part_engines, player
from vidc.plugins.errors import GateError
from vidc.plugins.quantize import quantize

LAYER = "blocks.1.ffn.net.2"
RING = recipe_of(None, AttentionFormat(values="int8"))
FP8_RING = recipe_of(None, AttentionFormat(values="fp8"))
EIGHTHS = st.integers(-(10**5), 10**5).map(lambda number: number / 8)


@given(
    st.lists(EIGHTHS, min_size=1, max_size=40),
    st.floats(1e-3, 1e3),
    st.sampled_from(["int8", "fp8"]),
)
def test_clipping_error_matches_rounding_error(values, amax, form):
    given_values, scale = torch.tensor(values), scale_of(torch.tensor(amax), form)
    clipping = Clipping()
    clipping.see("layer", OF_LINEARS, given_values, scale, form)
    (error,) = clipping.worst().values()
    limit = float(scale) * LARGEST[form]
    beyond = sum(max(abs(value) - limit, 0.0) ** 2 for value in values) ** 0.5
    norm = sum(value**2 for value in values) ** 0.5
    assert error == pytest.approx(beyond / norm if norm else 0.0, rel=1e-4, abs=1e-6)
    rounded = quantize(given_values, scale, DTYPES[form]).float() * scale
    assert float((rounded - given_values).norm()) >= beyond * (1 - 1e-4) - 1e-3


def test_the_worst_call_of_each_component_is_kept():
    clipping, one = Clipping(), torch.ones(())
    for component, largest in (("denoise", 127.0), ("denoise", 254.0), ("kv_update", 130.0)):
        clipping.component = component
        clipping.see("a", OF_LINEARS, torch.tensor([largest]), one, "int8")
        clipping.see("b", OF_LINEARS, torch.zeros(3), one, "int8")
    expected = {("denoise", "a"): 0.5, ("kv_update", "a"): 3 / 130}
    assert {key: value for key, value in clipping.worst().items() if value} == pytest.approx(
        expected
    )
    assert next(iter(clipping.worst())) == ("denoise", "a")
    with pytest.raises(GateError, match=r"RANGE\].*denoise: 50\.0% of what enters a "):
        clipping.require_within_limits()


@pytest.mark.parametrize("form", ["int8", "fp8"])
@pytest.mark.parametrize("limits", [OF_LINEARS, OF_RINGS])
def test_limit_is_inclusive_relative_l2(limits, form):
    clipping, limit = Clipping(), limits[form]

    def see(layer, share):
        largest = torch.tensor([LARGEST[form] / (1 - share)])
        clipping.see(layer, limits, largest, torch.ones(()), form)

    see("a", 0.99 * limit)
    clipping.require_within_limits()
    see("b", 1.01 * limit)
    with pytest.raises(GateError, match=rf"enters b .* {limit:.0%} may be.*is: 1"):
        clipping.require_within_limits()


def test_each_layer_has_a_limit_of_its_own():
    clipping = Clipping()
    for layer, limits, share in (("ring", OF_RINGS, 0.08), ("linear", OF_LINEARS, 0.05)):
        largest = torch.tensor([LARGEST["fp8"] / (1 - share)])
        clipping.see(layer, limits, largest, torch.ones(()), "fp8")
    with pytest.raises(GateError, match=r" 5\.0% of what enters linear .* 3% may be.*is: 1"):
        clipping.require_within_limits()


def test_rejects_nan():
    clipping = Clipping()
    clipping.see("a", OF_LINEARS, torch.tensor([float("inf")]), torch.ones(()), "fp8")
    with pytest.raises(GateError, match=r"RANGE\].*nan% of what enters a "):
        clipping.require_within_limits()


def played(model, stream, recipe, calibration):
    clipping, part = Clipping(), model.config.quantized_part
    formats = apply_recipe(recipe, model.config)
    layers = QuantizedLayers(part, model.network, formats, calibration, clipping)
    with layers.quantized(layers.layers):
        engines = part_engines(part, model.network)
        for name, engine in engines.items():
            engine.module.register_forward_pre_hook(partial(clipping.enter, name))
        playing = player(model.config, engines, torch.device("cpu"))
        playing.rollout(scenario(model.config), model.inputs[0])
    return clipping


def narrowed(calibration, prefix, share=1 / 3):
    """A share of the ranges whose names begin so."""
    tensors = dict(calibration.tensors)
    tensors |= {name: value * share for name, value in tensors.items() if name.startswith(prefix)}
    return Calibration(calibration.document, tensors)


@needs_modelopt
@pytest.mark.parametrize(
    ("recipe", "ranges", "layer", "component"),
    [
        (recipe_of(LinearFormat("fp8", "fp8", center=True)), f"{LAYER}.input", LAYER, "denoise"),
        (recipe_of(), "blocks.0.attn2.", "blocks.0.attn2.to_k", "text_kv"),
        (RING, "blocks.0.attn1.v", "blocks.0.attn1", "kv_update"),
    ],
)
def test_narrow_ranges_are_located(model, stream, recipe, ranges, layer, component):
    good = played(model, stream, recipe, model.calibration)
    good.require_within_limits()
    # What is rounded before a layer goes a little beyond what was recorded.
    assert max(good.worst().values()) < 0.03
    found = played(model, stream, recipe, narrowed(model.calibration, ranges))
    cut = {key for key, error in found.worst().items() if error > 0.1}
    assert (component, layer) in cut
    with pytest.raises(GateError, match="VIDC-CALIBRATION-RANGE"):
        found.require_within_limits()


@needs_modelopt
@pytest.mark.parametrize(
    ("recipe", "ranges", "layer", "refused"),
    [
        (recipe_of(LinearFormat("fp8", "fp8")), "blocks.0.attn2.", "blocks.0.attn2.to_k", True),
        (recipe_of(), "blocks.0.attn2.", "blocks.0.attn2.to_k", False),
        (RING, "blocks.0.attn1.v", "blocks.0.attn1", False),
        (FP8_RING, "blocks.0.attn1.v", "blocks.0.attn1", False),
    ],
)  # fmt: skip
def test_a_linear_in_fp8_may_lose_less_than_one_in_int8_and_than_rings(
    model, stream, recipe, ranges, layer, refused
):
    found = played(model, stream, recipe, narrowed(model.calibration, ranges, 0.6))
    lost = max(error for (_, name), error in found.worst().items() if name == layer)
    assert 0.03 < lost < 0.1
    if refused:
        with pytest.raises(GateError, match=r"VIDC-CALIBRATION-RANGE.* 3% may be"):
            found.require_within_limits()
    else:
        found.require_within_limits()


@needs_modelopt
def test_per_token_scales_do_not_clip(model, stream):
    recipe = recipe_of(LinearFormat("int8", "int8", "dynamic"))
    assert not played(model, stream, recipe, model.calibration).worst()
