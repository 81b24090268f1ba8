"""Scales of self-attention in 8 bits, and faults that must not get past the check."""

from dataclasses import replace

import pytest
import torch

from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.attention import (
    attention_types,
    attention_weights,
    quantized_attention,
    require_faithful_attention,
)
from vidc.compiler.quantize.support import AOTI_GPU
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError, GateError

LAYER = "blocks.0.attn1"


@pytest.fixture
def attentions(config):
    return quantized_attention(load_recipe("fp8"), config, AOTI_GPU)


def test_scales_reach_to_the_largest_of_each_head(config, calibration, attentions):
    found = {n: t.load() for n, t in attention_weights(attentions, calibration).items()}
    assert {n: (tuple(t.shape), t.dtype) for n, t in found.items()} == {
        n: (t.shape, t.dtype) for n, t in attention_types(attentions).items()
    }
    assert len(attentions) == config.transformer.layers
    key = f"{LAYER}.k"
    low, mean, high = (calibration.tensors[f"{key}.{of}"] for of in ("low", "mean", "high"))
    assert torch.equal(found[f"{LAYER}.key_mean"], mean)
    reach = torch.maximum(high - mean, mean - low).amax(1)
    wanted = {"key_scale": reach, "value_scale": calibration.amax(f"{LAYER}.v").amax(1)}
    for name, largest in wanted.items():
        torch.testing.assert_close(found[f"{LAYER}.{name}"] * 448, largest)


def test_keys_that_are_not_centered_reach_further(calibration, attentions):
    plain = {
        name: replace(each, format=replace(each.format, center=False))
        for name, each in attentions.items()
    }
    found = attention_weights(plain, calibration)
    assert f"{LAYER}.key_mean" not in found
    largest = calibration.amax(f"{LAYER}.k").amax(1)
    torch.testing.assert_close(found[f"{LAYER}.key_scale"].load() * 448, largest)
    require_faithful_attention(found, plain, calibration)


@pytest.mark.parametrize("part", ["k", "v"])
def test_rejects_constant_head_by_name(calibration, attentions, part):
    """Zero throughout; or, of keys that are centered, the same throughout."""
    name, tensors = f"{LAYER}.{part}", dict(calibration.tensors)
    for of in ("", ".low", ".mean", ".high"):
        tensors[name + of] = tensors[name + of].clone()
        tensors[name + of][..., 1, :] = 0 if part == "v" else 0.5
    dead = replace(calibration, tensors=tensors)
    said = {"k": "keys of head 1 are their mean", "v": "values of head 1 are zero"}[part]
    with pytest.raises(GateError, match=rf"VIDC-CALIBRATION-ZERO.*{LAYER}: the {said}"):
        attention_weights(attentions, dead)
    plain = {
        name: replace(each, format=replace(each.format, center=False))
        for name, each in attentions.items()
    }
    if part == "k":
        require_faithful_attention(attention_weights(plain, dead), plain, dead)


@pytest.mark.parametrize(
    ("name", "other"),
    [("key_scale", "value_scale"), ("value_scale", "key_scale")],
)
def test_swapped_scales_are_found(calibration, attentions, name, other):
    found = attention_weights(attentions, calibration)
    require_faithful_attention(found, attentions, calibration)
    found[f"{LAYER}.{name}"] = found[f"{LAYER}.{other}"]
    with pytest.raises(BuildError, match=rf"VIDC-QUANTIZE-WEIGHTS.*{LAYER}.{name}: head"):
        require_faithful_attention(found, attentions, calibration)


def test_another_mean_is_found(calibration, attentions):
    found = attention_weights(attentions, calibration)
    name = f"{LAYER}.key_mean"
    found[name] = LazyTensor.of(found[name].load() * 1.5)
    with pytest.raises(BuildError, match="VIDC-QUANTIZE-WEIGHTS"):
        require_faithful_attention(found, attentions, calibration)
