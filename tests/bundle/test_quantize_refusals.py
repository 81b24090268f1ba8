"""Calibrations and recipes that a build refuses."""

import hashlib
import json
import re
import shutil

import pytest
from modelopt_here import needs_modelopt
from safetensors.torch import load_file, save

pytestmark = needs_modelopt


def test_a_calibration_of_another_checkpoint_is_refused(build, calibrated, tmp_path):
    other = shutil.copytree(calibrated, tmp_path / "other")
    document = json.loads((other / "calibration.json").read_text())
    document["weights"] = "0" * 64
    (other / "calibration.json").write_text(json.dumps(document))
    output = tmp_path / "bundle"
    status, _, err = build("--precision", "int8", "--calibration", str(other), "-o", str(output))
    assert (status, "VIDC-CALIBRATION-FOREIGN" in err) == (2, True), err
    assert not output.exists()


def test_a_calibration_that_is_too_narrow_is_refused_by_name(build, calibrated, tmp_path):
    narrow = shutil.copytree(calibrated, tmp_path / "narrow")
    path = narrow / "calibration.safetensors"
    tensors = load_file(path)
    tensors |= {n: t / 3 for n, t in tensors.items() if n.startswith("blocks.1.ffn.net.2.input")}
    path.write_bytes(save(tensors))
    document = json.loads((narrow / "calibration.json").read_text())
    content = path.read_bytes()
    document["tensors"] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (narrow / "calibration.json").write_text(json.dumps(document))
    output = tmp_path / "bundle"
    status, _, err = build("--precision", "int8", "--calibration", str(narrow), "-o", str(output))
    assert status == 1, err
    assert "VIDC-CALIBRATION-RANGE" in err
    assert re.search(r"denoise: .*blocks\.1\.ffn\.net\.2 .*layers of which more is: 1", err)
    assert not output.exists()


@pytest.mark.parametrize(("part", "what"), [("k", "keys"), ("v", "values")])
def test_a_head_that_is_dead_is_refused_where_its_ring_is_rounded(
    project, vidc, monkeypatch, tmp_path, part, what
):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    pipeline = shutil.copytree(project.pipeline, tmp_path / "pipeline")
    (path,) = (pipeline / "transformer").glob("*.safetensors")
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    for of in ("weight", "bias"):
        # Two heads of 24 channels.
        tensors[f"blocks.1.attn1.to_{part}.{of}"][24:] = 0
    path.write_bytes(save(tensors))
    given = (str(project.preset), "--gpu", "cpu", "--checkpoint")
    ranges = str(tmp_path / "calibration")
    status, _, err = vidc(
        "calibrate", *given, str(pipeline / "transformer"), "-n", "1", "-o", ranges
    )
    assert status == 0, err
    rest = ("--precision", "int8", "--calibration", ranges, "-o", str(tmp_path / "b"), "--plan")
    build = ("build", *given, str(pipeline), *rest)
    status, _, err = vidc(*build, "--recipe", "kv-int8")
    assert status == 1
    assert "VIDC-CALIBRATION-ZERO" in err
    assert f"blocks.1.attn1: the {what} of head 1 are zero throughout" in err
    # A recipe that rounds no ring does not care.
    status, _, err = vidc(*build, "--recipe", "int8-static")
    assert status == 0, err


def test_a_calibration_without_the_means_of_inputs_is_to_be_made_again(build, calibrated, tmp_path):
    older = shutil.copytree(calibrated, tmp_path / "older")
    document = json.loads((older / "calibration.json").read_text())
    (older / "calibration.json").write_text(json.dumps(document | {"schema": 1}))
    output = tmp_path / "bundle"
    status, _, err = build("--precision", "int8", "--calibration", str(older), "-o", str(output))
    assert status == 1
    assert "VIDC-CALIBRATION-SCHEMA" in err
    assert "run vidc calibrate again" in err
    assert not output.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (("--precision", "int8", "--recipe", "int8"), 3, "VIDC-RECIPE-LOWERING"),
        (("--precision", "int8", "--recipe", "fp8-linear"), 2, "VIDC-RECIPE-PRECISION"),
        (("--precision", "int8", "--recipe", "fp8-int8-attention"), 2, "VIDC-RECIPE-PRECISION"),
        (("--precision", "fp8", "--recipe", "kv-int8", "--backend", "aoti"), 2, "in int8, and fp8"),
        (("--recipe", "int8-static"), 2, "VIDC-RECIPE-PRECISION"),
        (("--precision", "fp8", "--recipe", "kv-fp8"), 3, "or --backend aoti"),
        (("--precision", "fp8", "--backend", "aoti"), 3, "VIDC-RECIPE-NONE"),
        (("--precision", "fp16", "--set", "recipe=kv-int8"), 2, "VIDC-RECIPE-PRECISION"),
        (("--set", "precision.kv_cache=int8"), 2, "VIDC-CONFIG-SETTING"),
        (("--set", "precision.vae=int8"), 3, "VIDC-EXPORT-PRECISION"),
        (("--calibration", "somewhere"), 2, "VIDC-CALIBRATION-UNUSED"),
        (("--precision", "int8", "--calibration", "nowhere"), 2, "VIDC-CALIBRATION-MISSING"),
    ],
)
def test_what_does_not_fit_together_is_refused(build, tmp_path, arguments, status, said):
    found, _, err = build(*arguments, "-o", str(tmp_path / "bundle"))
    assert (found, said in err) == (status, True), err
    assert not (tmp_path / "bundle").exists()


def test_a_recipe_with_nothing_in_8_bits_is_refused(build, tmp_path):
    recipe, output = tmp_path / "high.toml", tmp_path / "bundle"
    rule = '[[linear]]\nlayers = ["blocks.*.ffn.**"]\nweights = "high"\nactivations = "high"\n'
    recipe.write_text(f'description = "all of it high"\n{rule}')
    status, _, err = build("--precision", "int8", "--recipe", str(recipe), "-o", str(output))
    assert (status, "VIDC-RECIPE-PRECISION" in err) == (2, True), err
    assert "recipe high leaves every layer in high precision" in err
    assert not output.exists()


@pytest.mark.parametrize("more", [(), ("--recipe", "kv-int8"), ("--backend", "aoti")])
def test_without_a_text_encoder_a_calibration_is_asked_for(project, vidc, tmp_path, more):
    weights = ("--checkpoint", str(project.pipeline / "transformer"))
    vae = ("--vae", str(project.pipeline / "vae"))
    status, _, err = vidc(
        "build", str(project.preset), "--gpu", "cpu", *weights, *vae, "--precision", "int8", *more,
        "--set", "stream.batch=1", "-o", str(tmp_path / "b"),
    )  # fmt: skip
    assert (status, "VIDC-CALIBRATION-NEEDED" in err) == (2, True), err
    assert "add --text-encoder FOLDER" in err
    assert f"vidc calibrate {project.preset} {' '.join(weights)} --set stream.batch=1" in err
    assert not (tmp_path / "b").exists()


def test_prompts_without_a_text_are_refused(build, tmp_path):
    config, output = tmp_path / "config.toml", tmp_path / "bundle"
    config.write_text('[calibrate]\nprompts = [" "]\n')
    status, _, err = build("--precision", "int8", "--config", str(config), "-o", str(output))
    assert (status, "VIDC-CALIBRATE-PROMPTS" in err) == (2, True), err
    assert not output.exists()
