import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.inspect import compare_bundles
from vidc.compiler.inspect.changes import Change
from vidc.compiler.inspect.compare_bundles import (
    WeightsDifference,
    compare_manifests,
    compare_weights,
    describe_tensor,
    relative_l2,
)
from vidc.plugins.signature import Access, Role, Rounding, Signature, TensorSpec
from vidc.runtime.manifest import Validation, read_manifest


def compared(a, b):
    old, new = read_manifest(a), read_manifest(b)
    return compare_manifests(old, new), compare_weights(a, old, b, new)


def test_report_does_not_make_bundles_differ(make_bundle):
    assert compared(make_bundle("a"), make_bundle("b", report="<html>")) == ({}, {})


def test_a_ring_in_8_bits_is_told_with_its_scale():
    ring = TensorSpec(
        "ring.k.0", (1, 8, 2, 4), "int8", Role.STATE, Access.READ_WRITE, rounding=Rounding("s", "m")
    )
    assert describe_tensor(ring) == "state int8 [1, 8, 2, 4] read_write times s around m"


def test_fields_are_named_with_dots(make_bundle):
    a = make_bundle("a")
    b = make_bundle(
        "b",
        name="tiny-cpu-bf16",
        config={"stream": {"window": 12, "sink": 3}},
        tools={"torch": "2.14.0", "vidc": "0.1.0"},
        stages={"export:denoise": "f" * 64},
        validation=Validation(True, 14, "report.html", "rollout", 9),
        calibration={"recipe": "fp8"},
    )
    changed, weights = compared(a, b)
    assert changed == {
        "bundle": (Change("name", "tiny-cpu-fp32", "tiny-cpu-bf16"),),
        "config": (Change("stream.window", 6, 12),),
        "tools": (Change("torch", "2.13.0", "2.14.0"),),
        "validation": (Change("gates", 12, 14),),
        "calibration": (Change("recipe", None, "fp8"),),
        "stages": (Change("export:denoise", "e" * 64, "f" * 64),),
    }
    assert weights == {}


def test_engines_differ_by_version_and_by_tensor(make_bundle):
    a = make_bundle("a")
    engines = dict(read_manifest(a).engines)
    latent, ring, flow = engines["denoise"].signature
    signature = Signature((replace(latent, shape=(2, 3)), replace(ring, in_place=True), flow))
    engines["denoise"] = replace(engines["denoise"], version="1.32.0", signature=signature)
    changed, _ = compared(a, make_bundle("b", engines=engines))
    state = "state float32 [1, 32, 2, 8] read_write"
    assert changed == {
        "engines": (
            Change("denoise.version", "1.31.0", "1.32.0"),
            Change(
                "denoise.signature.latent",
                "input bfloat16 [1, 3, 4, 2, 4]",
                "input bfloat16 [2, 3]",
            ),
            Change("denoise.signature.ring.k.0", state, f"{state} in place"),
        )
    }


def test_weights_are_compared_tensor_by_tensor(make_bundle):
    same, shape = torch.ones(5), torch.ones(2)
    a = make_bundle("a", {"same": same, "small": torch.ones(4), "large": torch.ones(4), "s": shape})
    b = make_bundle(
        "b",
        {
            "same": same,
            "small": torch.full((4,), 1.125),
            "large": torch.full((4,), 1.5),
            "s": torch.ones(3),
            "new": shape,
        },
    )
    changed, weights = compared(a, b)
    assert [change.name for change in changed["files"]] == [
        "weights/transformer.safetensors",
    ]
    assert weights == {"transformer": WeightsDifference(3, ("new", "s"), 2, "large", 0.5)}


def test_a_difference_that_is_not_finite_has_no_number(make_bundle):
    a = make_bundle("a", {"w": torch.ones(2)})
    b = make_bundle("b", {"w": torch.tensor([1.0, math.nan])})
    assert compared(a, b)[1]["transformer"].relative_l2 is None


VALUES = st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=8)


@given(VALUES, st.floats(-100, 100, width=32), st.integers(1, 9))
def test_relative_l2_is_that_of_whole_tensors(values, shift, chunk):
    old = torch.tensor(values)
    new = old + shift
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare_bundles, "_CHUNK", chunk)
        found = relative_l2(old, new)
    error, norm = (new.double() - old.double()).norm().item(), old.double().norm().item()
    expected = 0.0 if error == 0 else error / norm if norm else math.inf
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (torch.tensor([math.nan]), torch.tensor([math.nan]), 0.0),
        (torch.tensor([1.0]), torch.tensor([math.nan]), math.inf),
        (torch.tensor([math.inf]), torch.tensor([1.0]), math.inf),
        (torch.tensor([1.0]), torch.tensor([1.0], dtype=torch.bfloat16), 0.0),
        (torch.tensor(2.0), torch.tensor(3.0), 0.5),
        (torch.empty(0), torch.empty(0), 0.0),
    ],
)
def test_relative_l2_of_special_values(old, new, expected):
    assert relative_l2(old, new) == expected
