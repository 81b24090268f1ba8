"""The commands on a bundle, as scripts use them."""

import json
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import av
import pytest
import torch
from safetensors.torch import save_file

from vidc.compiler.cli import main
from vidc.runtime.manifest import read_manifest


@pytest.fixture
def vidc(capsys, monkeypatch, project):
    """Runs a command line; gives its status, stdout and stderr."""
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    monkeypatch.setenv("VIDC_GPU", "cpu")
    for variable in ("VIDC_PRECISION", "VIDC_BACKEND"):
        monkeypatch.delenv(variable, raising=False)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def test_build_finds_the_bundle(vidc, project):
    status, out, _ = vidc(
        "build", project.preset, "--gpu", "cpu", "--checkpoint", project.pipeline,
        "-o", project.bundle, "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert (status, document["schema"], document["hit"]) == (0, 1, True)
    assert document["bundle"] == str(project.bundle)
    assert all(stage["hit"] for stage in document["stages"])


def test_plan_says_what_changed_and_where_settings_come_from(vidc, project):
    status, out, _ = vidc(
        "build", project.preset, "--gpu", "cpu", "--checkpoint", project.pipeline,
        "--set", "stream.window=9", "-o", project.bundle, "--plan", "--json",
    )  # fmt: skip
    document = json.loads(out)
    stages = {row["stage"]: row for row in document["stages"]}
    assert status == 0
    assert stages["export:denoise"]["status"] == "STALE"
    assert any("window: 8 -> 9" in reason for reason in stages["export:denoise"]["reasons"])
    assert stages["compile:denoise"]["status"] == "UNKNOWN"
    assert stages["export:vae_decode"]["status"] == "HIT"
    assert document["settings"]["stream.window"] == {"value": 9, "origin": "--set stream.window"}
    assert document["settings"]["stream.block"]["origin"].startswith("preset")


def test_validate(vidc, project, tmp_path):
    status, out, _ = vidc("validate", project.bundle, "--report", tmp_path / "r.html", "--json")
    document = json.loads(out)
    assert (status, document["passed"], document["schema"]) == (0, True, 1)
    assert {"component", "metric", "value", "threshold", "passed"} <= document["gates"][0].keys()
    assert [row["block"] for row in document["rollout"]] == list(range(8))
    assert (tmp_path / "r.html").read_text().startswith("<!")


def test_a_passing_validate_fits_ten_lines_and_verbose_shows_every_gate(vidc, project):
    status, out, _ = vidc("validate", project.bundle)
    assert status == 0
    assert len(out.splitlines()) <= 10
    gates = int(re.search(r"all (\d+) gates passed", out)[1])
    status, out, _ = vidc("validate", project.bundle, "-v")
    assert status == 0
    assert out.count("  passed") == gates > 10


def test_a_build_ends_with_its_size_its_time_and_the_next_command(vidc, project, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    build = ("build", project.preset, "--gpu", "cpu", "--checkpoint", project.pipeline)
    status, out, err = vidc(*build, "-o", project.bundle)
    assert (status, out) == (0, f"{project.bundle}\n")
    size, following = err.splitlines()[-2:]
    assert re.fullmatch(
        r"built in [\d.]+ s, [\d.]+ [kM]B: weights .*, golden data .*, engines .*", size
    )
    assert following == f"next: vidc run {project.bundle} --prompt TEXT -o out.mp4"
    status, out, err = vidc("-q", *build, "-o", project.bundle)
    assert (status, out, err) == (0, f"{project.bundle}\n", "")


def test_run_writes_a_video(vidc, project, tmp_path):
    status, out, _ = vidc(
        "run", project.bundle, "--prompt", "a cat runs", "--switch", "2:a dog sleeps",
        "--blocks", "3", "--scale", "2", "-o", tmp_path / "v.mp4", "--json",
    )  # fmt: skip
    document = json.loads(out)
    assert (status, document["frames"]) == (0, 33)
    assert document["seconds_to_first_frames"] > 0
    assert document["frames_per_second"] > 0
    with av.open(str(tmp_path / "v.mp4")) as video:
        assert [frame.width for frame in video.decode(video=0)] == [2 * 48] * 33


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda b: (b / "denoise.onnx").unlink(), "VIDC-BUNDLE-MISSING"),
        (lambda b: (b / "denoise.onnx").write_bytes(b""), "VIDC-BUNDLE-TRUNCATED"),
        (lambda b: flip(b / "weights" / "transformer.safetensors"), "VIDC-BUNDLE-ALTERED"),
        (lambda b: (b / "notes.txt").write_text("mine"), "VIDC-BUNDLE-EXTRA"),
    ],
)
def test_a_damaged_bundle_is_refused(vidc, project, tmp_path, damage, code):
    copy = tmp_path / "copy"
    shutil.copytree(project.bundle, copy)
    damage(copy)
    status, out, err = vidc("validate", copy)
    assert (status, out) == (1, "")
    assert code in err
    assert "Traceback" not in err


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("arguments", "status", "code"),
    [
        (["build", "tinny", "--gpu", "cpu", "--random-weights", "1"], 2, "VIDC-CONFIG-PRESET"),
        (["build", "tiny", "--gpu", "h1000", "--random-weights", "1"], 2, "VIDC-CONFIG-TARGET"),
        (["build", "tiny", "--gpu", "cpu", "--precision", "fp9"], 2, "VIDC-CONFIG-PRECISION"),
        (["build", "tiny", "--gpu", "t4", "--precision", "bf16"], 3, "VIDC-TARGET-PRECISION"),
        (["build", "tiny", "--gpu", "cpu", "--precision", "fp8"], 3, "VIDC-BACKEND-PRECISION"),
        (["build", "tiny", "--gpu", "cpu", "--backend", "onxruntime"], 2, "VIDC-CONFIG-BACKEND"),
        (["build", "tiny", "--gpu", "cpu", "--set", "stream.windw=8"], 2, "VIDC-CONFIG-SETTING"),
        (["build", "tiny", "--gpu", "cpu", "--set", "stream.window=5"], 2, "VIDC-CONFIG-SIZES"),
        (["build", "tiny", "--gpu", "cpu", "--set", "stream.height=60"], 2, "VIDC-CONFIG-SIZES"),
        (["build", "tiny", "--gpu", "cpu"], 2, "VIDC-BUILD-SOURCES"),
        (["build", "tiny", "--gpu", "cpu", "--checkpoint", "."], 2, "VIDC-BUILD-SOURCES"),
        (["build", "--checkpoint", "x", "--vae", "y"], 2, "VIDC-CHECKPOINT-MISSING"),
        (["build", "--checkpoint", ".", "--lora", ".", "--lora", "x"], 2,
         "VIDC-CHECKPOINT-MISSING"),
        (["validate", "nowhere"], 2, "VIDC-BUNDLE-NOT"),
        (["run", "nowhere", "--prompt", "x"], 2, "VIDC-BUNDLE-NOT"),
    ],
)  # fmt: skip
def test_what_is_refused_and_how(vidc, tmp_path, monkeypatch, arguments, status, code):
    monkeypatch.chdir(tmp_path)
    found, out, err = vidc(*arguments)
    assert code in err
    assert (found, out) == (status, "")
    assert "try: " in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], "VIDC-PROMPT-NONE"),
        (["--prompt", "a", "--prompt-embeds", "b"], "VIDC-PROMPT-NONE"),
        (["--prompt", "a", "--switch", "x:b"], "VIDC-PROMPT-SWITCH"),
        (["--prompt", "a", "--switch", "9:b", "--blocks", "2"], "VIDC-PROMPT-SWITCH"),
        (["--prompt", "a", "--switch", "2:b", "--switch", "2:c"], "VIDC-PROMPT-SWITCH"),
        (["--prompt", "a", "--switch", "2:b", "--switch-embeds", "02:f"], "VIDC-PROMPT-SWITCH"),
        (["--prompt-embeds", "nowhere.safetensors"], "VIDC-PROMPT-FILE"),
        (["--prompt", "a", "--switch-embeds", "2:nowhere.safetensors"], "VIDC-PROMPT-FILE"),
        (["--prompt", "a", "-o", "out.avi"], "VIDC-VIDEO-SUFFIX"),
        (["--prompt", "a", "-o", "out.gif", "--fps", "60"], "VIDC-VIDEO-FPS"),
    ],
)
def test_run_refuses(vidc, project, tmp_path, monkeypatch, arguments, code):
    """Before any engine is loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vidc.runtime.bundle.load", None)
    status, _, err = vidc("run", project.bundle, *arguments)
    assert (status, code in err) == (2, True), err
    assert list(tmp_path.iterdir()) == []


def test_run_looks_at_the_folder_before_it_loads(vidc, project, tmp_path, monkeypatch):
    monkeypatch.setattr("vidc.runtime.bundle.load", None)
    status, _, err = vidc("run", project.bundle, "--prompt", "a", "-o", tmp_path / "no" / "v.mp4")
    assert (status, "VIDC-VIDEO-WRITE" in err) == (3, True), err


def test_run_checks_every_prompt_before_the_first_block(vidc, project, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("vidc.runtime.Session.step", None)
    save_file({"short": torch.zeros(1, 2, 3)}, tmp_path / "bad.safetensors")
    status, _, err = vidc(
        "run", project.bundle, "--prompt", "a", "--switch-embeds", "7:bad.safetensors"
    )
    assert (status, "VIDC-PROMPT-SHAPE" in err) == (2, True), err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.safetensors"]


def test_run_writes_every_video_of_a_batch(vidc, project, tmp_path, monkeypatch):
    class TwoVideos:
        """A session of batch 2 whose frames are black in one video and white in the other."""

        def embeds(self, prompt):
            return prompt

        def prompt(self, embeds):
            pass

        def step(self):
            return (
                torch.tensor([0, 255], dtype=torch.uint8)
                .repeat_interleave(4 * 32 * 48 * 3)
                .reshape(2, 4, 32, 48, 3)
            )

        def fetch(self, frames):
            return lambda: frames

    document = read_manifest(project.bundle)
    spec = replace(document.spec, batch=2)
    loaded = SimpleNamespace(notes=(), session=lambda seed, decoder: nullcontext(TwoVideos()))
    monkeypatch.setattr(
        "vidc.runtime.manifest.read_manifest", lambda folder: replace(document, spec=spec)
    )
    monkeypatch.setattr("vidc.runtime.bundle.load", lambda folder: nullcontext(loaded))
    status, out, err = vidc(
        "run", project.bundle, "--prompt", "a", "--blocks", "2", "-o", tmp_path / "v.mp4", "--json"
    )
    assert status == 0, err
    outputs = [tmp_path / "v-0.mp4", tmp_path / "v-1.mp4"]
    assert json.loads(out)["outputs"] == [str(path) for path in outputs]
    for path, (low, high) in zip(outputs, [(0, 20), (235, 255)], strict=True):
        with av.open(str(path)) as video:
            frames = [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]
        assert len(frames) == 8
        assert all(low <= frame.mean() <= high for frame in frames)
