"""Rollouts with groups in 8 bits: a layer that cannot take it is found, and kept high."""

import math

import diamond_models
import pytest
import torch
from modelopt_here import needs_modelopt
from outlier import BAD, INT8, recipe_of

from vidc.compiler.analyze.choose import Scored, best_within, by_damage, fastest_within
from vidc.compiler.analyze.groups import layer_groups, layers_of
from vidc.compiler.analyze.trials import Trials
from vidc.compiler.build.calibration_rollouts import rollout_inputs, scenario
from vidc.compiler.config.recipe import AttentionFormat, LinearFormat, Recipe, Rule
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.switch import QuantizedLayers
from vidc.compiler.validate.metrics import compare, psnr
from vidc.compiler.validate.play import Calls, ObservedEngine
from vidc.compiler.validate.reference import EagerEngine, part_engines, player
from vidc.exporters.models import with_weights
from vidc.exporters.parts.wan_vae.random_weights import random_state_dict

pytestmark = needs_modelopt
CPU = torch.device("cpu")
RING = AttentionFormat("int8", "int8", "int8", center=True)


@pytest.fixture(scope="module")
def decoders(config):
    weights = dict(random_state_dict(config.vae, 1, torch.float32))
    network = with_weights(config.parts["vae"].network("fp32"), weights)
    parts = config.parts["vae"].components(network)
    return {n: EagerEngine(part) for n, part in parts.items() if n.startswith("vae_decode")}


def trials_of(model, recipe, decoders=None):
    return Trials(model.config, decoders or {}, model.layers(recipe), model.inputs)


def latents_of(model, engines, forced=None):
    (inputs,) = model.inputs
    played = player(model.config, engines, CPU)
    return played.rollout(scenario(model.config), inputs, forced=forced).latents


@pytest.fixture(scope="module")
def scored(model, stream):
    """Every group of INT8 with one scale a tensor, each of which saves as much as the others."""
    recipe = recipe_of(INT8, RING)
    trials = trials_of(model, recipe)
    groups = layer_groups(model.config, apply_recipe(recipe, model.config))
    found = []
    for group in groups:
        damage = trials.damage(group.layers)
        found.append(Scored(group, damage.sqnr_db, damage.psnr_db, 1.0))
    return trials, found


def test_nothing_in_8_bits_is_no_damage(scored):
    trials, _ = scored
    found = trials.damage(())
    assert (found.sqnr_db, found.psnr_db) == (math.inf, math.inf)


def test_every_group_does_some_damage(scored):
    _, found = scored
    assert len(found) == 12
    assert all(0 < each.psnr_db < math.inf for each in found)
    assert all(0 < each.sqnr_db < math.inf for each in found)


def test_the_layer_with_the_outlier_ranks_first(scored):
    _, found = scored
    worst, second = by_damage(found)[:2]
    assert worst.group.layers == (BAD,)
    assert worst.psnr_db < second.psnr_db - 6
    assert min(found, key=lambda each: each.sqnr_db) is worst


def test_floor_keeps_outlier_layer_in_high_precision(scored):
    trials, found = scored
    rest = [each for each in found if each.group.layers != (BAD,)]

    def measure(mixed):
        return trials.psnr(layers_of([each.group for each in mixed]))

    together = measure(rest)
    (bad,) = (each for each in found if each.group.layers == (BAD,))
    assert together > bad.psnr_db + 3
    chosen = fastest_within((together + bad.psnr_db) / 2, found, measure)
    assert {each.group for each in chosen.groups} == {each.group for each in rest}
    assert chosen.psnr_db == together
    in_time = best_within(1 - 10.5 / 24, found, 24.0, measure)
    assert BAD not in layers_of([each.group for each in in_time.groups])


def test_smoothing_reduces_outlier_damage(model, stream, scored):
    _, found = scored
    plain = next(each for each in found if each.group.layers == (BAD,))
    smooth = trials_of(model, recipe_of(LinearFormat("int8", "int8", "static", 0.8)))
    assert smooth.psnr((BAD,)) > plain.psnr_db + 6


def test_figures_match_manual_rollouts(model, stream, scored):
    _, found = scored
    group = found[0].group

    def played(engines):
        return latents_of(model, engines)

    def flows(engines, forced=None):
        given = []

        def observe(number, component, written):
            if component == "denoise":
                given.append(written["flow"].clone())
                if forced is not None:
                    written["flow"].copy_(forced[len(given) - 1])

        calls = Calls(observe)
        played({name: ObservedEngine(name, engine, calls) for name, engine in engines.items()})
        return given

    reference = played(model.engines)
    layers = model.layers(recipe_of(INT8, RING))

    def engines():
        return part_engines(model.config.quantized_part, model.network)

    values = torch.stack(reference)
    peak = float(values.max() - values.min())

    def worst(latents):
        return min(psnr(one, two, peak) for one, two in zip(latents, reference, strict=True))

    alike = 0
    for each in found:
        with layers.quantized(each.group.layers):
            made = engines()
            forced, free = (worst(latents_of(model, made, given)) for given in (reference, None))
        assert each.psnr_db == pytest.approx(forced)
        alike += free == pytest.approx(forced)
    assert alike < len(found), "free rollouts have other errors in later blocks"
    expected = flows(model.engines)
    with layers.quantized(group.layers):
        forced = flows(engines(), expected)
    pairs = zip(forced, expected, strict=True)
    assert found[0].sqnr_db == pytest.approx(min(compare(*pair).sqnr_db for pair in pairs))


def test_with_a_vae_frames_are_compared(model, stream, decoders):
    trials = trials_of(model, recipe_of(INT8), decoders)
    assert trials.compared == "frames"
    found = trials.psnr((BAD,))
    reference = latents_of(model, model.engines)
    with model.layers(recipe_of(INT8)).quantized((BAD,)):
        latents = latents_of(model, model.engines, reference)
    decoding = player(model.config, decoders, CPU)
    one, two = (decoding.decode(each) for each in (latents, reference))
    assert found == pytest.approx(min(psnr(one[block], two[block]) for block in two))
    assert trials_of(model, recipe_of(INT8)).compared == "latents"


def test_non_finite_is_worst(model, stream):
    trials = trials_of(model, recipe_of(INT8))
    bias = model.linear(BAD).bias
    before = bias.clone()
    bias[3] = torch.nan
    try:
        found = trials.damage((BAD,))
    finally:
        bias.copy_(before)
    assert (found.sqnr_db, found.psnr_db) == (-math.inf, -math.inf)


def test_queries_and_ring_are_both_in_8_bits(model, stream):
    """Attention in 8 bits is worse than its ring alone, and that is worse than nothing."""
    whole = trials_of(model, recipe_of(None, RING)).damage(("blocks.0.attn1",))
    ring = AttentionFormat(keys="int8", values="int8", center=True)
    kept = trials_of(model, recipe_of(None, ring)).damage(("blocks.0.attn1",))
    assert whole.sqnr_db < kept.sqnr_db < math.inf


def test_layers_of_every_forced_component_do_damage():
    made = diamond_models.pair(frames={"height": 4, "width": 4})
    part = made.model.part
    network = with_weights(part.network("fp32"), made.weights)
    recipe = Recipe("r", "d", (Rule(("**",), LinearFormat("int8")),), ())
    layers = QuantizedLayers(part, network, apply_recipe(recipe, made.model), None)
    inputs = rollout_inputs(made.model, 0, 0, torch.zeros(2, 0))
    trials = Trials(made.model, {}, layers, [inputs])
    for network_name in ("denoiser", "upsampler"):
        chosen = [name for name in layers.layers if name.startswith(network_name)]
        assert len(chosen) == 3
        assert 0 < trials.damage(chosen).sqnr_db < math.inf
