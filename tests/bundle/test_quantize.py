"""A bundle in INT8, from a calibration to its validation, and what must not get that far."""

import hashlib
import json
import math
import re
import shutil
from collections import Counter
from dataclasses import replace

import onnx
import onnxruntime
import pytest
import torch
from modelopt_here import needs_modelopt
from safetensors.torch import load_file, save

from vidc.runtime.manifest import read_manifest

pytestmark = needs_modelopt
LAYERS = {"text_kv": 4, "denoise": 16, "kv_update": 10}
"""Linears of the recipe that a component of two layers has."""


@pytest.fixture(scope="module")
def calibrated(project, tmp_path_factory):
    """A calibration of the project's weights."""
    from click.testing import CliRunner

    from vidc.compiler.cli.calibrate import command

    output = tmp_path_factory.mktemp("calibrated") / "calibration"
    arguments = [
        str(project.preset), "--gpu", "cpu", "--checkpoint", str(project.pipeline / "transformer"),
        "-n", "8", "-o", str(output),
    ]  # fmt: skip
    made = CliRunner().invoke(command, arguments, env={"VIDC_CACHE": str(project.cache)})
    assert made.exit_code == 0, made.output
    return output


@pytest.fixture
def build(project, vidc, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))

    def run(*arguments):
        weights = ("--checkpoint", str(project.pipeline))
        return vidc("build", str(project.preset), "--gpu", "cpu", *weights, *arguments)

    return run


@pytest.fixture(scope="module")
def quantized(project, calibrated, tmp_path_factory):
    from vidc.compiler.build.build import whole
    from vidc.compiler.cli.progress import LineProgress

    settings, sources = project.resolve(precision="int8")
    output = tmp_path_factory.mktemp("quantized") / "bundle"
    sources = replace(sources, calibration=calibrated)
    with pytest.MonkeyPatch.context() as patch:
        # The project's weights come from files, but nobody trained them.
        patch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
        return whole(settings, sources).run(output, project.cache, LineProgress()).output


@pytest.fixture(scope="module")
def centered(project, calibrated, tmp_path_factory):
    """A bundle whose Linears have the mean taken off their inputs, which are smoothed too."""
    from vidc.compiler.build.build import whole
    from vidc.compiler.cli.progress import LineProgress

    folder = tmp_path_factory.mktemp("centered")
    recipe = folder / "centered.toml"
    recipe.write_text(
        'description = "less their mean"\n[[linear]]\nweights = "int8"\nactivations = "int8"\n'
        'layers = ["blocks.*.attn1.**", "blocks.*.attn2.**", "blocks.*.ffn.**"]\n'
        "smooth = 0.8\ncenter = true\n"
    )
    settings, sources = project.resolve(precision="int8", recipe=str(recipe))
    sources = replace(sources, calibration=calibrated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
        return whole(settings, sources).run(folder / "bundle", project.cache, LineProgress()).output


def test_what_is_taken_off_inputs_is_the_calibration_s_mean(centered, calibrated):
    assert read_manifest(centered).validation.passed
    weights = load_file(centered / "weights/transformer.safetensors")
    ranges = load_file(calibrated / "calibration.safetensors")
    means = [name for name in weights if name.endswith(".input_quantizer.mean")]
    # Two layers of seven inputs, of which queries, keys and values share one.
    assert len(means) == 14
    for name in means:
        # Of Linears that share an input, values run in all passes, the last layer's queries do not.
        layer = name.removesuffix(".input_quantizer.mean")
        layer = layer.replace("attn1.to_q", "attn1.to_v").replace("attn2.to_k", "attn2.to_v")
        assert torch.equal(weights[name], ranges[f"{layer}.input.mean"])
    for component, layers in {"text_kv": 2, "denoise": 12, "kv_update": 7}.items():
        graph = onnx.load(centered / f"{component}.onnx", load_external_data=False).graph
        taken_off = {n.input[1] for n in graph.node if n.op_type == "Sub"} & {
            f"transformer.{name}" for name in means
        }
        assert len(taken_off) == layers


@pytest.mark.parametrize("fault", ["mean", "bias"])
def test_what_is_taken_off_and_not_made_up_for_fails_validation_by_name(
    centered, vidc, tmp_path, fault
):
    bundle = shutil.copytree(centered, tmp_path / "bundle")
    path = bundle / "weights/transformer.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    layer = "blocks.0.ffn.net.0.proj"
    name = f"{layer}.input_quantizer.mean" if fault == "mean" else f"{layer}.bias"
    tensors[name] = tensors[name] + tensors[name].abs().max().clamp(min=1.0)
    _write(path, tensors)
    _accept(bundle)
    status, out, err = vidc("validate", str(bundle), "--json")
    assert status == 1, err
    failed = {gate["component"] for gate in json.loads(out)["gates"] if not gate["passed"]}
    assert {"denoise", "kv_update"} <= failed
    assert not failed & {"text_kv", "vae_decode"}


def test_it_says_what_it_is_and_by_which_ranges(quantized, calibrated, project):
    manifest = read_manifest(quantized)
    precisions = {name: engine.precision for name, engine in manifest.engines.items()}
    assert {precisions[name] for name in LAYERS} == {"int8"}
    assert {precisions["vae_decode"], precisions["text_encoder"]} == {"fp32"}
    assert manifest.calibration == json.loads((calibrated / "calibration.json").read_text())
    assert manifest.config["quantization"]["recipe"] == "int8-static"
    name = "weights/transformer.safetensors"
    assert (quantized / name).stat().st_size < 0.8 * (project.bundle / name).stat().st_size


def test_engines_err_as_pytorch_does_by_the_same_recipe(quantized, vidc, monkeypatch):
    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
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


def test_weights_alone_need_no_calibration(build, project, monkeypatch, tmp_path):
    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
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
def test_scales_for_each_token_need_no_calibration(build, vidc, monkeypatch, tmp_path):
    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
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


@pytest.fixture(
    scope="module",
    params=[("int8", "onnxruntime"), pytest.param(("fp8", "aoti"), marks=pytest.mark.deep)],
    ids=lambda pair: f"kv-{pair[0]}",
)
def cached(request, project, calibrated, tmp_path_factory):
    """A bundle whose keys and values alone are in 8 bits, and their dtype."""
    from vidc.compiler.build.build import whole
    from vidc.compiler.cli.progress import LineProgress

    precision, backend = request.param
    settings, sources = project.resolve(
        precision=precision, recipe=f"kv-{precision}", backend=backend
    )
    output = tmp_path_factory.mktemp("cached") / "bundle"
    sources = replace(sources, calibration=calibrated)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
        return whole(settings, sources).run(output, project.cache, LineProgress()).output


def rings(bundle):
    """The window's keys and values as a bundle's manifest has them, and what they take."""
    states = {
        state.name: state
        for engine in read_manifest(bundle).engines.values()
        for state in engine.signature.states
        if state.name.startswith("ring.")
    }
    taken = (math.prod(s.shape) * s.torch_dtype.itemsize for s in states.values())
    return states.values(), sum(taken)


def test_keys_and_values_alone_in_8_bits(cached, project, vidc, monkeypatch):
    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
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


def failed_with_swapped_scales(bundle, vidc, folder):
    """What fails of a copy whose keys have the values' scales, and values the keys'."""
    bundle = shutil.copytree(bundle, folder / "swapped")
    path = bundle / "weights/transformer.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    for layer in range(2):
        key, value = (f"blocks.{layer}.attn1.ring.{part}.scale" for part in ("keys", "values"))
        tensors[key], tensors[value] = tensors[value], tensors[key]
    _write(path, tensors)
    _accept(bundle)
    status, out, err = vidc("validate", str(bundle), "--json")
    assert status == 1, err
    return {gate["component"] for gate in json.loads(out)["gates"] if not gate["passed"]}


def test_swapped_scales_of_keys_and_values_fail_validation_by_name(cached, vidc, tmp_path):
    failed = failed_with_swapped_scales(cached, vidc, tmp_path)
    assert "denoise" in failed
    assert not failed & {"text_kv", "vae_decode"}


def test_swapped_scales_of_attention_in_8_bits_fail_validation_by_name(
    build, calibrated, vidc, monkeypatch, tmp_path
):
    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
    recipe, output = "fp8-int8-attention", tmp_path / "bundle"
    status, _, err = build(
        "--precision", "fp8", "--recipe", recipe, "--backend", "aoti",
        "--calibration", str(calibrated), "-o", str(output),
    )  # fmt: skip
    assert status == 0, err
    failed = failed_with_swapped_scales(output, vidc, tmp_path)
    assert {"denoise", "recache_5"} <= failed
    assert not failed & {"text_kv", "vae_decode"}


def test_a_mix_has_its_layers_alone_in_8_bits(project, calibrated, tmp_path, monkeypatch):
    from vidc.compiler.build.build import whole
    from vidc.compiler.cli.progress import LineProgress

    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
    recipe = tmp_path / "mix.toml"
    recipe.write_text(
        "description = \"one layer's attention, all second halves, and another layer's ring\"\n"
        '[[linear]]\nweights = "int8"\nactivations = "int8"\n'
        'layers = ["blocks.0.attn1.**", "blocks.*.ffn.net.2"]\n'
        '[[attention]]\nlayers = ["blocks.1.attn1"]\nkeys = "int8"\nvalues = "int8"\n'
    )
    settings, sources = project.resolve(precision="int8", recipe=str(recipe))
    sources = replace(sources, calibration=calibrated)
    output = whole(settings, sources).run(tmp_path / "mix", project.cache, LineProgress()).output
    assert read_manifest(output).validation.passed
    weights = load_file(output / "weights/transformer.safetensors")
    assert {name for name, tensor in weights.items() if tensor.dtype is torch.int8} == {
        *(f"blocks.0.attn1.{layer}.weight" for layer in ("to_q", "to_k", "to_v", "to_out.0")),
        *(f"blocks.{block}.ffn.net.2.weight" for block in range(2)),
    }
    assert {state.name: state.dtype for state in rings(output)[0]} == {
        "ring.k.0": "float32", "ring.v.0": "float32", "ring.k.1": "int8", "ring.v.1": "int8",
    }  # fmt: skip


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


@pytest.mark.parametrize("fault", ["wrong", "swapped", "skipped"])
def test_a_scale_that_is_wrong_fails_validation_by_name(quantized, vidc, tmp_path, fault):
    bundle = shutil.copytree(quantized, tmp_path / "bundle")
    path = bundle / "weights/transformer.safetensors"
    # Copies, for a file that is mapped is about to be overwritten.
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    one, other = "blocks.0.ffn.net.2.weight_scale", "blocks.0.attn1.to_out.0.weight_scale"
    if fault == "wrong":
        tensors[one] = tensors[one] * 2
    elif fault == "skipped":
        # The layer gives its bias alone.
        tensors[one] = tensors[one] * 0
    else:
        tensors[one], tensors[other] = tensors[other], tensors[one]
    _write(path, tensors)
    _accept(bundle)
    status, out, err = vidc("validate", str(bundle), "--json")
    assert status == 1, err
    failed = {gate["component"] for gate in json.loads(out)["gates"] if not gate["passed"]}
    assert {"denoise", "kv_update"} <= failed
    assert not failed & {"text_kv", "vae_decode"}


def _write(path, tensors):
    from vidc.exporters.checkpoint import write_weights
    from vidc.exporters.checkpoint.lazy import LazyTensor

    write_weights(path, {name: LazyTensor.of(tensor) for name, tensor in tensors.items()})


def _accept(bundle):
    """Makes a bundle's manifest one of the files as they are."""
    from vidc.runtime.integrity import file_entry
    from vidc.runtime.manifest import write_manifest

    manifest = read_manifest(bundle)
    files = {name: file_entry(bundle / name) for name in manifest.files}
    write_manifest(replace(manifest, files=files), bundle)


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


def _statuses(out):
    return {row["stage"]: row["status"] for row in json.loads(out)["stages"]}


def test_build_calibrates_by_itself_on_the_preset_s_prompts(
    project, build, vidc, monkeypatch, tmp_path
):
    """Once: the next build finds its ranges, and ``vidc calibrate`` writes down the same."""
    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
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


def test_prompts_without_a_text_are_refused(build, tmp_path):
    config, output = tmp_path / "config.toml", tmp_path / "bundle"
    config.write_text('[calibrate]\nprompts = [" "]\n')
    status, _, err = build("--precision", "int8", "--config", str(config), "-o", str(output))
    assert (status, "VIDC-CALIBRATE-PROMPTS" in err) == (2, True), err
    assert not output.exists()
