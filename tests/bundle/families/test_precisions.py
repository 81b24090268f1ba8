"""The shipped tiny presets of all families but causal video in other precisions than float32."""

import json

import pytest

PRESETS = ("world-tiny", "latent-world-tiny", "oasis-tiny", "svd-tiny")
pytestmark = pytest.mark.deep


def validated(vidc, folder, preset, precision, seed, *options):
    """Builds a preset with random weights; returns what ``validate`` and ``inspect`` say."""
    source = (preset, "--gpu", "cpu", "--random-weights", str(seed), "--precision", precision)
    source += options
    status, _, err = vidc("build", *source, "-o", str(folder / "bundle"))
    assert status == 0, err
    found = []
    for command in ("validate", "inspect"):
        status, out, err = vidc(command, str(folder / "bundle"), "--json")
        assert status == 0, err
        found.append(json.loads(out))
    return found


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("preset", PRESETS)
def test_int8_passes_every_gate_on_the_build_s_own_ranges(vidc, tmp_path, preset, seed):
    validation, contents = validated(vidc, tmp_path, preset, "int8", seed)
    assert validation["passed"]
    assert "int8" in {engine["precision"] for engine in contents["engines"]}


@pytest.mark.parametrize(("precision", "backend"), [("fp16", "onnxruntime"), ("bf16", "aoti")])
@pytest.mark.parametrize("preset", PRESETS[:3])
def test_half_precision_passes_every_gate(vidc, tmp_path, preset, precision, backend):
    validation, contents = validated(vidc, tmp_path, preset, precision, 1, "--backend", backend)
    assert validation["passed"]
    assert precision in {engine["precision"] for engine in contents["engines"]}
