"""Calibrating a model that comes with a checkpoint, a text encoder and prompts as text."""

import json

from modelopt_here import needs_modelopt

from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.artifact import read_calibration
from vidc.runtime.manifest import read_manifest


@needs_modelopt
def test_a_calibration_with_texts_belongs_to_the_bundle_s_weights(
    project, vidc, tmp_path, monkeypatch
):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    (tmp_path / "prompts.json").write_text(json.dumps(["a red fox", "a hen", "a boat"]))
    output = tmp_path / "calibration"
    status, out, err = vidc(
        "calibrate", str(project.preset), "--gpu", "cpu", "--checkpoint", str(project.pipeline),
        "--prompts", str(tmp_path / "prompts.json"), "-n", "2", "-o", str(output),
    )  # fmt: skip
    assert (status, out) == (0, f"{output}\n"), err
    settings, _ = project.resolve()
    found = read_calibration(output, settings.model)
    assert (found.document.prompts.kind, found.document.prompts.count) == ("texts", 2)
    assert found.document.prompts.texts == ("a red fox", "a hen")
    weights = read_manifest(project.bundle).weights["transformer"].source["digest"]
    found.require_fits(settings.model, weights)


@needs_modelopt
def test_without_texts_a_trained_model_is_said_to_be_calibrated_on_drawn_prompts(
    project, vidc, tmp_path, monkeypatch
):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    transformer = project.pipeline / "transformer"
    status, _, err = vidc(
        "calibrate", str(project.preset), "--gpu", "cpu", "--checkpoint", str(transformer),
        "-n", "1", "-o", str(tmp_path / "calibration"),
    )  # fmt: skip
    # No VAE is given, and none is needed.
    assert status == 0, err
    assert "drawn embeddings stand in" in err


@needs_modelopt
def test_fewer_prompts_than_asked_for_are_said(project, vidc, tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red fox\n")
    status, _, err = vidc(
        "calibrate", str(project.preset), "--gpu", "cpu", "--checkpoint", str(project.pipeline),
        "--prompts", str(prompts), "-n", "2", "-o", str(tmp_path / "calibration"),
    )  # fmt: skip
    assert status == 0, err
    assert f"{prompts} holds 1 prompts, and -n is 2: all are used" in err


@needs_modelopt
def test_an_analysis_with_texts_compares_frames(project, vidc, tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    (tmp_path / "prompts.json").write_text(json.dumps(["a red fox", "a hen"]))
    output = tmp_path / "calibration"
    status, out, err = vidc(
        "calibrate", str(project.preset), "--gpu", "cpu", "--checkpoint", str(project.pipeline),
        "--prompts", str(tmp_path / "prompts.json"), "-n", "2", "--analyze-prompts", "1",
        "--budget", "psnr=10", "-o", str(output), "--json",
    )  # fmt: skip
    assert status == 0, err
    analysis = json.loads(out)["analysis"]
    assert (analysis["psnr_of"], analysis["prompts"]) == ("frames", 1)
    assert analysis["mix"]["kept"] == []
    assert analysis["mix"]["psnr_db"] >= 10
    assert load_recipe(analysis["recipe_file"]).linear == load_recipe("int8-static").linear
