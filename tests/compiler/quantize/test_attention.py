"""Scales of 8-bit self-attention, and faults that must not get past the check."""

from dataclasses import replace

import pytest
import torch
from quantized import Drawn

from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.attention import require_faithful_attention
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.support import AOTI_CPU
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError, GateError

LAYER = "blocks.0.attn1"


@pytest.fixture(scope="module")
def model(config, calibration, weights):
    return Drawn(
        config, weights, supported_formats(load_recipe("fp8"), config, AOTI_CPU), calibration
    )


@pytest.fixture(scope="module")
def plain(model):
    attention = {n: replace(each, center=False) for n, each in model.formats.attention.items()}
    return replace(model, formats=replace(model.formats, attention=attention))


def check(found, model):
    require_faithful_attention(found, model.formats.attention, model.calibration)


def test_scales_reach_to_the_largest_of_each_head(model):
    found = model.state()
    key = f"{LAYER}.k"
    low, mean, high = (model.calibration.tensors[f"{key}.{of}"] for of in ("low", "mean", "high"))
    assert torch.equal(found[f"{LAYER}.ring.keys.mean"].load(), mean)
    reach = torch.maximum(high - mean, mean - low).amax(1)
    wanted = {"keys": reach, "values": model.calibration.amax(f"{LAYER}.v").amax(1)}
    for name, largest in wanted.items():
        torch.testing.assert_close(found[f"{LAYER}.ring.{name}.scale"].load() * 448, largest)
    check(found, model)


def test_keys_that_are_not_centered_reach_further(plain):
    found = plain.state()
    assert f"{LAYER}.ring.keys.mean" not in found
    largest = plain.calibration.amax(f"{LAYER}.k").amax(1)
    torch.testing.assert_close(found[f"{LAYER}.ring.keys.scale"].load() * 448, largest)
    check(found, plain)


@pytest.mark.parametrize("part", ["k", "v"])
def test_rejects_constant_head_by_name(model, plain, part):
    """Zero throughout; or, of keys that are centered, the same throughout."""
    name, tensors = f"{LAYER}.{part}", dict(model.calibration.tensors)
    for of in ("", ".low", ".mean", ".high"):
        tensors[name + of] = tensors[name + of].clone()
        tensors[name + of][..., 1, :] = 0 if part == "v" else 0.5
    dead = replace(model.calibration, tensors=tensors)
    said = {"k": "keys of head 1 are their mean", "v": "values of head 1 are zero"}[part]
    with pytest.raises(GateError, match=rf"VIDC-CALIBRATION-ZERO.*{LAYER}: the {said}"):
        replace(model, calibration=dead).state()
    if part == "k":
        uncentered = replace(plain, calibration=dead)
        check(uncentered.state(), uncentered)


@pytest.mark.parametrize(("name", "other"), [("keys", "values"), ("values", "keys")])
def test_swapped_scales_are_found(model, name, other):
    found = model.state()
    found[f"{LAYER}.ring.{name}.scale"] = found[f"{LAYER}.ring.{other}.scale"]
    with pytest.raises(
        BuildError, match=rf"VIDC-QUANTIZE-WEIGHTS.*{LAYER}.ring.{name}.scale: head"
    ):
        check(found, model)


def test_another_mean_is_found(model):
    found = model.state()
    name = f"{LAYER}.ring.keys.mean"
    found[name] = LazyTensor.of(found[name].load() * 1.5)
    with pytest.raises(BuildError, match="VIDC-QUANTIZE-WEIGHTS"):
        check(found, model)
