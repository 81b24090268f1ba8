"""Bundles with keys and values in 8 bits."""

import json
import shutil

import pytest
import torch
from bundle_8bit import LAYERS, build_8bit, overwrite, rings
from modelopt_here import needs_modelopt
from safetensors.torch import load_file

from vidc.runtime.manifest import read_manifest

pytestmark = needs_modelopt


@pytest.fixture(
    scope="module",
    params=[("int8", "onnxruntime"), pytest.param(("fp8", "aoti"), marks=pytest.mark.deep)],
    ids=lambda pair: f"kv-{pair[0]}",
)
def cached(request, project, calibrated, tmp_path_factory):
    """A bundle whose keys and values alone are in 8 bits, and their dtype."""
    precision, backend = request.param
    output = tmp_path_factory.mktemp("cached") / "bundle"
    flags = {"precision": precision, "recipe": f"kv-{precision}", "backend": backend}
    return build_8bit(project, calibrated, output, **flags)


@pytest.mark.usefixtures("weights_untrained")
def test_keys_and_values_alone_in_8_bits(cached, project, vidc):
    manifest = read_manifest(cached)
    precision = manifest.config["quantization"]["precision"]
    assert manifest.validation.passed
    assert manifest.validation.level == "rollout"
    assert {manifest.engines[name].precision for name in LAYERS} == {precision}
    (states, taken), (_, before) = rings(cached), rings(project.bundle)
    assert 4 * taken == before
    assert {state.dtype for state in states} == {
        {"int8": "int8", "fp8": "float8_e4m3fn"}[precision]
    }
    assert all(s.in_place and s.axes is None and not s.rounding.reordered for s in states)
    name = "weights/transformer.safetensors"
    wide = {tensor.dtype for tensor in load_file(cached / name).values()}
    assert wide == {torch.float32}
    status, out, err = vidc("validate", str(cached), "--json")
    assert status == 0, err
    worst = {
        row["component"]: row["value"]
        for row in json.loads(out)["gates"]
        if (row["where"], row["metric"]) == ("component", "relative_l2")
    }
    assert worst["text_kv"] < 1e-5 < 1e-3 < worst["denoise"]


@pytest.mark.deep
def test_bench_profiles_components_with_keys_and_values_in_8_bits(cached, vidc, tmp_path):
    quick = ("--samples", "6", "--warmup", "1", "--cold-starts", "0")
    page = str(tmp_path / "bench.html")
    status, out, err = vidc("bench", str(cached), *quick, "--profile", "--report", page, "--json")
    assert status == 0, err
    measured = {row["component"] for row in json.loads(out)["profile"]["components"]}
    assert {"denoise", "kv_update"} <= measured


def failed_with_swapped_scales(bundle, vidc, folder):
    """Gates that fail in a copy whose keys have the scales of values, and values those of keys."""
    bundle = shutil.copytree(bundle, folder / "swapped")
    path = bundle / "weights/transformer.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    for layer in range(2):
        key, value = (f"blocks.{layer}.attn1.ring.{part}.scale" for part in ("keys", "values"))
        tensors[key], tensors[value] = tensors[value], tensors[key]
    overwrite(bundle, path, tensors)
    status, out, err = vidc("validate", str(bundle), "--json")
    assert status == 1, err
    return {gate["component"] for gate in json.loads(out)["gates"] if not gate["passed"]}


def test_swapped_scales_of_keys_and_values_fail_validation_by_name(cached, vidc, tmp_path):
    failed = failed_with_swapped_scales(cached, vidc, tmp_path)
    assert "denoise" in failed
    assert not failed & {"text_kv", "vae_decode"}


@pytest.mark.deep
@pytest.mark.usefixtures("weights_untrained")
def test_swapped_scales_of_attention_in_8_bits_fail_validation_by_name(
    build, calibrated, vidc, tmp_path
):
    recipe, output = "fp8-int8-attention", tmp_path / "bundle"
    status, _, err = build(
        "--precision", "fp8", "--recipe", recipe, "--backend", "aoti",
        "--calibration", str(calibrated), "-o", str(output),
    )  # fmt: skip
    assert status == 0, err
    failed = failed_with_swapped_scales(output, vidc, tmp_path)
    assert {"denoise", "recache_5"} <= failed
    assert not failed & {"text_kv", "vae_decode"}
