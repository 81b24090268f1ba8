"""A bundle of Stable Video Diffusion, built from a diffusers folder and run on a CPU."""

import json

import av
import numpy as np
import pytest
import tiny_svd
from PIL import Image
from safetensors import safe_open

from vidc.compiler.cli import main
from vidc.runtime import load
from vidc.runtime.manifest import read_manifest

SETTINGS = ("sampler.steps=2", "model.layers=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("svd")
    tiny_svd.save_pipeline(root / "pipeline", tiny_svd.model(*SETTINGS))
    picture = np.random.default_rng(0).integers(0, 256, (128, 128, 3), dtype=np.uint8)
    Image.fromarray(picture).save(root / "picture.png")
    return root


def vidc(*arguments):
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return end.value.code


def built(folder, backend, monkeypatch):
    """Builds the bundle of a backend, once."""
    monkeypatch.setenv("VIDC_CACHE", str(folder / "cache"))
    if (folder / backend).exists():
        return folder / backend
    status = vidc(
        "build", "svd-tiny", "--gpu", "cpu", "--backend", backend, "--checkpoint",
        folder / "pipeline", *(word for each in SETTINGS for word in ("--set", each)),
        "-o", folder / backend,
    )  # fmt: skip
    assert status == 0
    return folder / backend


@pytest.mark.parametrize("backend", ["onnxruntime", pytest.param("aoti", marks=pytest.mark.deep)])
def test_builds_validates_and_runs(folder, backend, monkeypatch, capsys):
    bundle = built(folder, backend, monkeypatch)
    assert read_manifest(bundle).validation.passed
    capsys.readouterr()
    video = folder / f"{backend}.mp4"
    status = vidc(
        "run", bundle, "--image", folder / "picture.png", "-o", video, "--fps", "7",
        "--motion", "127", "--seed", "3", "--json",
    )  # fmt: skip
    assert (status, json.loads(capsys.readouterr().out)["frames"]) == (0, 4)
    with av.open(str(video)) as opened:
        assert opened.streams.video[0].average_rate == 7
        assert sum(1 for _ in opened.decode(video=0)) == 4
    svd = tiny_svd.model(*SETTINGS)
    picture = Image.open(folder / "picture.png")
    with load(bundle) as loaded, loaded.session(seed=3) as session:
        found = session.generate(picture)
    assert tiny_svd.relative_l2(found, tiny_svd.session(svd, seed=3).generate(picture)) < 1e-4


def as_json(capsys, *arguments):
    capsys.readouterr()
    assert vidc(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_bench_and_inspect_know_its_parts(folder, monkeypatch, capsys):
    bundle = built(folder, "onnxruntime", monkeypatch)
    quick = ("--samples", 1, "--warmup", 0, "--cold-starts", 0)
    found = as_json(capsys, "bench", bundle, *quick)
    assert {"block_ms", "vae_ms", "stream_ms"} <= found["metrics"].keys()
    assert (found["workload"]["frames"], len(found["workload"]["sigmas"])) == (4, 3)
    engines = as_json(capsys, "inspect", bundle)["engines"]
    assert {engine["component"] for engine in engines} == {
        "image_encoder", "vae_encode", "condition_clip", "denoise", "vae_decode"
    }  # fmt: skip


@pytest.mark.deep
def test_builds_and_validates_in_half_precision(folder, monkeypatch, capsys):
    monkeypatch.setenv("VIDC_CACHE", str(folder / "cache"))
    settings = (word for each in SETTINGS for word in ("--set", each))
    status = vidc(
        "build", "svd-tiny", "--gpu", "cpu", "--precision", "fp16", "--random-weights", 1,
        *settings, "-o", folder / "fp16",
    )  # fmt: skip
    assert status == 0
    engines = as_json(capsys, "inspect", folder / "fp16")["engines"]
    assert {engine["precision"] for engine in engines} == {"fp16"}
    assert as_json(capsys, "validate", folder / "fp16")["passed"]


@pytest.mark.deep
def test_is_quantized_on_recorded_ranges(folder, monkeypatch, capsys):
    monkeypatch.setenv("VIDC_CACHE", str(folder / "cache"))
    settings = [word for each in SETTINGS for word in ("--set", each)]
    source = ("svd-tiny", "--gpu", "cpu", "--random-weights", 1, *settings)
    assert vidc("calibrate", *source, "-n", 4, "-o", folder / "ranges") == 0
    quantized = ("--precision", "int8", "--calibration", folder / "ranges")
    assert vidc("build", *source, *quantized, "-o", folder / "int8") == 0
    assert as_json(capsys, "validate", folder / "int8")["passed"]
    with safe_open(folder / "int8/weights/unet.safetensors", "pt") as weights:
        kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    narrow = {name.removesuffix(".weight") for name, kind in kinds.items() if kind == "I8"}
    wide = {name.removesuffix(".weight") for name, kind in kinds.items() if kind == "F32"}
    convolutions = {name for name in narrow if name.endswith(("conv1", "conv2", ".conv"))}
    assert "mid_block.resnets.0.spatial_res_block.conv1" in convolutions
    assert "up_blocks.1.attentions.0.transformer_blocks.0.attn1.to_q" in narrow - convolutions
    assert {"conv_in", "conv_out", "mid_block.attentions.0.proj_in"} <= wide - narrow


@pytest.mark.deep
@pytest.mark.parametrize("backend", ["onnxruntime", "aoti"])
@pytest.mark.parametrize(
    ("setting", "denoisers"),
    [
        ("sampler.cache_interval=2", {"denoise", "denoise_shallow"}),
        ("sampler.kind=consistency", {"denoise"}),
    ],
)
def test_builds_its_other_samplers(folder, backend, setting, denoisers, monkeypatch, capsys):
    monkeypatch.setenv("VIDC_CACHE", str(folder / "cache"))
    output = folder / f"{backend}-{setting}"
    settings = (word for each in (*SETTINGS, setting) for word in ("--set", each))
    status = vidc(
        "build", "svd-tiny", "--gpu", "cpu", "--backend", backend, "--random-weights", 1,
        *settings, "-o", output,
    )  # fmt: skip
    assert status == 0
    found = as_json(capsys, "validate", output)
    assert found["passed"]
    judged = {gate["component"] for gate in found["gates"] if gate["where"] == "component"}
    assert {name for name in judged if name.startswith("denoise")} == denoisers


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), "VIDC-CLIP-NO-IMAGE"),
        (("--image", "missing.png"), "VIDC-CLIP-FILE"),
        (("--image", "wide.png"), "VIDC-CLIP-IMAGE"),
        (("--image", "gray.png"), "VIDC-CLIP-IMAGE"),
        (("--image", "picture.png", "--motion", "-1"), "VIDC-CLIP-NUMBER"),
        (("--image", "picture.png", "--prompt", "a fox"), "VIDC-PROMPT-UNUSED"),
    ],
)
def test_run_refuses(folder, arguments, code, monkeypatch, capsys):
    bundle = built(folder, "onnxruntime", monkeypatch)
    Image.new("RGB", (256, 128)).save(folder / "wide.png")
    Image.new("L", (128, 128)).save(folder / "gray.png")
    monkeypatch.chdir(folder)
    capsys.readouterr()
    assert vidc("run", bundle, *arguments, "-o", "refused.mp4") == 2
    assert code in capsys.readouterr().err
    assert not (folder / "refused.mp4").exists()
