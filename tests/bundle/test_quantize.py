"""A bundle in INT8, from a calibration to its validation."""

import json
import re
import shutil
from collections import Counter

import onnx
import onnxruntime
import pytest
import torch
from bundle_8bit import LAYERS, build_8bit, rings
from modelopt_here import needs_modelopt
from safetensors.torch import load_file

from vidc.runtime.manifest import read_manifest

pytestmark = needs_modelopt


@pytest.fixture(scope="module")
def quantized(project, calibrated, tmp_path_factory):
    output = tmp_path_factory.mktemp("quantized") / "bundle"
    return build_8bit(project, calibrated, output, precision="int8")


def test_a_mix_has_its_layers_alone_in_8_bits(mixed):
    assert read_manifest(mixed).validation.passed
    weights = load_file(mixed / "weights/transformer.safetensors")
    attention = ("to_q", "to_k", "to_v", "to_out.0")
    assert {name for name, tensor in weights.items() if tensor.dtype is torch.int8} == {
        *(f"blocks.0.attn1.{layer}.weight" for layer in attention),
        *(f"blocks.{block}.attn2.{layer}.weight" for block in range(2) for layer in attention),
        *(f"blocks.{block}.ffn.net.{half}.weight" for block in range(2) for half in ("0.proj", 2)),
    }
    assert {state.name: state.dtype for state in rings(mixed)[0]} == {
        "ring.k.0": "float32", "ring.v.0": "float32", "ring.k.1": "int8", "ring.v.1": "int8",
    }  # fmt: skip


def test_what_is_taken_off_inputs_is_the_calibration_s_mean(mixed, calibrated):
    weights = load_file(mixed / "weights/transformer.safetensors")
    ranges = load_file(calibrated / "calibration.safetensors")
    means = [name for name in weights if name.endswith(".input_quantizer.mean")]
    # Two layers of four inputs, of which keys and values share one.
    assert len(means) == 8
    for name in means:
        layer = name.removesuffix(".input_quantizer.mean").replace("attn2.to_k", "attn2.to_v")
        assert torch.equal(weights[name], ranges[f"{layer}.input.mean"])
    for component, layers in {"text_kv": 2, "denoise": 6, "kv_update": 3}.items():
        graph = onnx.load(mixed / f"{component}.onnx", load_external_data=False).graph
        taken_off = {n.input[1] for n in graph.node if n.op_type == "Sub"} & {
            f"transformer.{name}" for name in means
        }
        assert len(taken_off) == layers


def test_it_says_what_it_is_and_by_which_ranges(quantized, calibrated, project):
    manifest = read_manifest(quantized)
    precisions = {name: engine.precision for name, engine in manifest.engines.items()}
    assert {precisions[name] for name in LAYERS} == {"int8"}
    assert {precisions["vae_decode"], precisions["text_encoder"]} == {"fp32"}
    assert manifest.calibration == json.loads((calibrated / "calibration.json").read_text())
    assert manifest.config["quantization"]["recipe"] == "int8-static"
    name = "weights/transformer.safetensors"
    assert (quantized / name).stat().st_size < 0.8 * (project.bundle / name).stat().st_size


@pytest.mark.usefixtures("weights_untrained")
def test_engines_err_as_pytorch_does_by_the_same_recipe(quantized, vidc):
    status, out, err = vidc("validate", str(quantized), "--json")
    assert status == 0, err
    document = json.loads(out)
    found = {row["component"]: row["relative_l2"] for row in document["components"]}
    for name in LAYERS:
        assert found[name] == pytest.approx(document["eager"]["components"][name], rel=0.2)
        assert found[name] > 1e-3


def test_its_products_are_of_integers(quantized, tmp_path):
    for component, layers in LAYERS.items():
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        onnxruntime.InferenceSession(str(quantized / f"{component}.onnx"), options)
        graph = onnx.load(tmp_path / "optimized.onnx", load_external_data=False).graph
        assert Counter(node.op_type for node in graph.node)["QGemm"] == layers
        kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        inputs = {kinds[n.input[2]] for n in graph.node if n.op_type == "QGemm"}
        assert inputs == {onnx.TensorProto.UINT8}


@pytest.mark.usefixtures("weights_untrained")
def test_weights_alone_need_no_calibration(build, project, tmp_path):
    output = tmp_path / "bundle"
    status, _, err = build("--precision", "int8", "--recipe", "int8-weight-only", "-o", str(output))
    assert status == 0, err
    document = read_manifest(output)
    assert document.validation.passed
    assert document.calibration is None
    name = "weights/transformer.safetensors"
    assert (output / name).stat().st_size < 0.8 * (project.bundle / name).stat().st_size
    kinds = Counter(str(tensor.dtype) for tensor in load_file(output / name).values())
    assert kinds["torch.int8"] == LAYERS["text_kv"] + LAYERS["denoise"]


@pytest.mark.deep
@pytest.mark.usefixtures("weights_untrained")
def test_scales_for_each_token_need_no_calibration(build, vidc, tmp_path):
    output = tmp_path / "bundle"
    status, _, err = build(
        "--precision", "fp8", "--recipe", "fp8-dynamic", "--backend", "aoti", "-o", str(output)
    )
    assert status == 0, err
    document = read_manifest(output)
    assert (document.validation.passed, document.validation.level) == (True, "rollout")
    assert document.calibration is None
    weights = load_file(output / "weights/transformer.safetensors")
    assert not any("input_" in name for name in weights)
    kinds = Counter(str(tensor.dtype) for tensor in weights.values())
    assert kinds["torch.float8_e4m3fn"] == LAYERS["text_kv"] + LAYERS["denoise"]
    status, out, err = vidc("validate", str(output), "--json")
    assert status == 0, err
    found = json.loads(out)
    errors = {row["component"]: row["relative_l2"] for row in found["components"]}
    for name in LAYERS:
        assert errors[name] == pytest.approx(found["eager"]["components"][name], rel=0.2)
        assert errors[name] > 5e-3


def test_a_plan_says_what_a_change_rebuilds(build, quantized, calibrated, tmp_path):
    arguments = ("--precision", "int8", "--plan", "--json", "-o", str(quantized))
    status, out, err = build(*arguments, "--calibration", str(calibrated))
    assert status == 0, err
    assert "recipe int8-static, the default of cpu" in err
    assert {row["status"] for row in json.loads(out)["stages"]} == {"HIT"}
    other = shutil.copytree(calibrated, tmp_path / "other")
    (other / "calibration.json").write_text((calibrated / "calibration.json").read_text() + "\n")
    status, out, err = build(*arguments, "--calibration", str(other))
    assert status == 0, err
    rows = {row["stage"]: row["status"] for row in json.loads(out)["stages"]}
    assert {name for name, kind in rows.items() if kind != "HIT"} == {
        "calibrate:transformer", "quantize:transformer", "golden:quantized", "package",
    }  # fmt: skip


def _statuses(out):
    return {row["stage"]: row["status"] for row in json.loads(out)["stages"]}


@pytest.mark.usefixtures("weights_untrained")
def test_build_calibrates_by_itself_on_the_preset_s_prompts(project, build, vidc, tmp_path):
    """Once: the next build finds its ranges, and ``vidc calibrate`` writes down the same."""
    config, bundle = tmp_path / "config.toml", tmp_path / "bundle"
    config.write_text('recipe = "kv-int8"\n[calibrate]\nprompts = ["a tall heron", "a hen"]\n')
    common = ("--config", str(config), "-o", str(bundle))
    arguments = ("--precision", "int8", *common)
    status, out, err = build(*arguments, "--plan", "--json")
    assert status == 0, err
    planned = _statuses(out)
    # Weights may be in the cache that tests share; with ranges of these prompts none is.
    assert planned["calibrate:transformer"] in ("MISS", "STALE", "UNKNOWN")
    assert planned["quantize:transformer"] == "UNKNOWN"
    status, out, err = build(*arguments)
    assert (status, out) == (0, f"{bundle}\n"), err
    assert "ranges come from rollouts of 2 prompts" in err
    assert re.search(r"^calibrate:transformer: \d", err, re.MULTILINE)
    manifest = read_manifest(bundle)
    assert manifest.validation.passed
    assert manifest.calibration["prompts"]["texts"] == ["a tall heron", "a hen"]
    assert manifest.config["quantization"]["recipe"] == "kv-int8"
    status, out, err = build(*arguments, "--plan", "--json")
    assert set(_statuses(out).values()) == {"HIT"}
    ranges = tmp_path / "ranges"
    status, _, err = vidc(
        "calibrate", str(project.preset), "--gpu", "cpu", "--checkpoint", str(project.pipeline),
        "--config", str(config), "-o", str(ranges),
    )  # fmt: skip
    assert status == 0, err
    assert "calibrate:transformer: cached" in err
    assert manifest.calibration == json.loads((ranges / "calibration.json").read_text())
