"""A build begun on a machine without the GPU and finished on another, against one done at once."""

import json
import shlex
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import quantized

from vidc.compiler.backends.onnxruntime.backend import OnnxRuntimeBackend
from vidc.compiler.build.build import whole
from vidc.compiler.build.handed_over import open_portable, rest
from vidc.compiler.build.handover import begun
from vidc.compiler.build.package import Package
from vidc.compiler.cli import main
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.quantize.artifact import write_calibration
from vidc.compiler.quantize.document import DOCUMENT, TENSORS
from vidc.compiler.store.plan import Status
from vidc.runtime.manifest import read_manifest

ELSEWHERE = "there is no GPU of this kind here"


def contents(bundle: Path) -> dict[str, bytes]:
    files = (path for path in bundle.rglob("*") if path.is_file())
    return {path.relative_to(bundle).as_posix(): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def folder(project, tmp_path_factory) -> Path:
    """Begun with what the build of the project left in the cache: that is the other order."""
    output = tmp_path_factory.mktemp("begun") / "small.portable"
    settings, sources = project.resolve()
    build = begun(settings, sources)
    assert build.plan(output, project.cache)[-1].status is Status.MISS
    built = build.run(output, project.cache, LineProgress())
    assert built.output == output
    assert all(stage.hit for stage in built.stages[:-1])
    rows = build.plan(output, project.cache)
    assert {row.status for row in rows} == {Status.HIT}
    assert rows[-1].key == built.stages[-1].key
    return output


@pytest.fixture(scope="module")
def elsewhere(folder, tmp_path_factory) -> Path:
    """The folder, copied to a machine where nothing else is."""
    copy = tmp_path_factory.mktemp("elsewhere") / "copied"
    shutil.copytree(folder, copy)
    return copy


@pytest.fixture(scope="module")
def finished(elsewhere) -> Path:
    """The bundle made of it there, with a cache that was empty."""
    build, output = rest(open_portable(elsewhere)), elsewhere.with_name("bundle")
    cache = elsewhere.with_name("cache")
    rows = {row.stage: row for row in build.plan(output, cache)}
    assert rows["export:denoise"].status is Status.MISS
    assert rows["compile:denoise"].status is Status.UNKNOWN
    build.run(output, cache, LineProgress())
    return output


def test_the_bundle_is_the_one_that_one_machine_makes(project, finished):
    assert read_manifest(finished).stages == read_manifest(project.bundle).stages
    assert contents(finished) == contents(project.bundle)


def test_each_order_finds_the_other_s_bundle(project, elsewhere, finished):
    built = whole(*project.resolve()).run(finished, project.cache, LineProgress())
    assert built.stages[-1].hit
    build, cache = rest(open_portable(elsewhere)), elsewhere.with_name("cache")
    rows = build.plan(finished, cache)
    assert {row.status for row in rows} == {Status.HIT}
    found = build.run(finished, cache, LineProgress())
    assert all(stage.hit for stage in found.stages)
    assert {s.name: s.key for s in found.stages} == {s.name: s.key for s in built.stages}
    assert {row.stage: row.key for row in rows} == {s.name: s.key for s in found.stages}


def test_finishing_that_was_interrupted_goes_on_where_it_was(
    elsewhere, finished, tmp_path, monkeypatch
):
    def interrupt(*_):
        raise KeyboardInterrupt

    build, cache = rest(open_portable(elsewhere)), elsewhere.with_name("cache")
    monkeypatch.setattr(Package, "run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build.run(tmp_path / "bundle", cache, LineProgress())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    again = build.run(tmp_path / "bundle", cache, LineProgress())
    assert [stage.name for stage in again.stages if not stage.hit] == ["package"]
    assert contents(tmp_path / "bundle") == contents(finished)


def test_a_build_in_8_bits_is_planned_with_what_it_is_held_to(project, tmp_path):
    """Ranges come with the folder: stage golden:quantized reads them, and no other calibration."""
    settings, sources = project.resolve(precision="int8", recipe="int8-static")
    made = quantized.calibration(settings.model, reach=3.0)
    digest = read_manifest(project.bundle).weights["transformer"].source["digest"]
    (tmp_path / "calibration").mkdir()
    document = replace(made.document, weights=digest)
    write_calibration(tmp_path / "calibration", document, made.tensors)
    sources = replace(sources, calibration=tmp_path / "calibration")
    begun(settings, sources).run(tmp_path / "begun", project.cache, LineProgress())
    shutil.rmtree(tmp_path / "calibration")

    portable = open_portable(tmp_path / "begun")
    done = portable.document.stages
    assert {"quantize:transformer", "export:denoise", "export:text_kv"} <= set(done)
    assert set(done["calibrate:transformer"].files) == {DOCUMENT, TENSORS}
    rows = rest(portable).plan(tmp_path / "bundle", tmp_path / "cache")
    left = [row.stage for row in rows if row.stage not in done]
    assert left[-3:] == ["golden", "golden:quantized", "package"]
    assert all(stage.startswith("compile:") for stage in left[:-3])
    found = {row.stage: row for row in rows}
    for name in ("calibrate:transformer", "quantize:transformer", "export:denoise"):
        assert found[name].status is Status.MISS
        assert found[name].key == done[name].components.key
    assert found["golden:quantized"].status is Status.UNKNOWN


def test_a_build_in_8_bits_is_finished_as_one_machine_makes_it(project, tmp_path, monkeypatch):
    monkeypatch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
    settings, sources = project.resolve(precision="int8", recipe="int8-weight-only")
    begun(settings, sources).run(tmp_path / "begun", project.cache, LineProgress())
    build, output = rest(open_portable(tmp_path / "begun")), tmp_path / "bundle"
    done = build.run(output, project.cache, LineProgress())
    keys = {stage.name: stage.key for stage in done.stages}
    assert read_manifest(output).stages == keys
    assert "golden:quantized" in keys
    rows = build.plan(output, project.cache)
    assert {row.status for row in rows} == {Status.HIT}
    at_once = whole(settings, sources).plan(output, project.cache)
    assert {row.stage: row.key for row in at_once} == {row.stage: row.key for row in rows} == keys


@pytest.fixture
def vidc(capsys, monkeypatch, project):
    """Runs a command line where a backend builds on GPUs alone, of which there is none."""
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    for variable in ("VIDC_GPU", "VIDC_PRECISION", "VIDC_BACKEND"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(OnnxRuntimeBackend, "precisions", lambda *_: frozenset({"fp32"}))
    monkeypatch.setattr(OnnxRuntimeBackend, "cross_compiles", lambda *_: False)
    monkeypatch.setattr("vidc.compiler.build.build.gpu_unavailable", lambda *_: ELSEWHERE)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


@pytest.fixture
def for_h100(vidc, project, tmp_path):
    """The command line that builds for a GPU that is not here, and what it left."""
    output = tmp_path / "a bundle"
    line = (
        "build", project.preset, "--gpu", "h100", "--backend", "onnxruntime",
        "--checkpoint", project.pipeline, "-o", output,
    )  # fmt: skip
    return line, output, tmp_path / "a bundle.portable"


def test_without_the_gpu_a_build_says_who_finishes_it(vidc, for_h100):
    line, output, folder = for_h100
    status, out, err = vidc(*line, "--plan", "--json")
    assert (status, json.loads(out)["portable"]) == (0, str(folder))
    assert json.loads(out)["stages"][-1]["stage"] == "portable"
    assert not folder.exists()
    status, out, err = vidc(*line)
    command = shlex.join(["vidc", "build", str(folder), "-o", str(output)])
    assert (status, out) == (3, f"{folder}\n")
    assert "VIDC-BUILD-PORTABLE" in err
    assert ELSEWHERE in err
    assert command in err
    assert not output.exists()
    status, out, _ = vidc(*line, "--json")
    document = json.loads(out)
    assert (status, document["schema"], document["hit"]) == (3, 1, True)
    assert document["portable"] == str(folder)
    assert document["command"] == command
    assert document["reason"] == ELSEWHERE
    assert read_settings(folder) == ("h100", "9.0")


def test_the_command_that_finishes_a_build_signs_it_too(vidc, for_h100):
    line, output, folder = for_h100
    _, out, _ = vidc(*line, "--sign", "maker.pem", "--plan", "--json")
    command = ["vidc", "build", str(folder), "-o", str(output), "--sign", "maker.pem"]
    assert json.loads(out)["command"] == shlex.join(command)


def read_settings(folder: Path) -> tuple[str, str | None]:
    target = open_portable(folder).settings.target
    return target.name, target.compute_capability


def test_a_machine_without_the_gpu_does_not_finish_either(vidc, for_h100):
    line, output, folder = for_h100
    vidc(*line)
    status, out, err = vidc("build", folder, "-o", output)
    assert (status, out) == (3, "")
    assert "VIDC-PORTABLE-MACHINE" in err
    assert ELSEWHERE in err
    status, out, _ = vidc("build", folder, "-o", output, "--plan", "--json")
    document = json.loads(out)
    assert status == 0
    assert document["settings"]["gpu"] == {"value": "h100", "origin": "--gpu"}
    assert not output.exists()


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpu", "cpu"),
        ("--precision", "fp32"),
        ("--backend", "onnxruntime"),
        ("--set", "stream.window=9"),
        ("--config", "a.toml"),
        ("--checkpoint", "a.pt"),
        ("--random-weights", "0"),
    ],
)
def test_a_folder_says_all_that_is_built(vidc, elsewhere, flags):
    status, out, err = vidc("build", elsewhere, *flags)
    assert (status, out) == (2, "")
    assert "VIDC-PORTABLE-FLAG" in err


def test_a_folder_that_is_none_is_refused(vidc, project, tmp_path):
    for folder in (tmp_path, project.bundle):
        status, _, err = vidc("build", folder)
        assert status == 2
        assert "VIDC-PORTABLE-NOT" in err


def test_a_folder_beside_does_not_hide_a_preset(vidc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    status, out, _ = vidc("build", "tiny", "--gpu", "cpu", "--random-weights", "1", "--plan")
    assert status == 0
    assert "export:denoise" in out


def test_the_command_finishes_the_build(vidc, elsewhere, finished, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(elsewhere.with_name("cache")))
    status, out, err = vidc("build", elsewhere, "-o", finished, "--json")
    document = json.loads(out)
    assert (status, document["bundle"], document["hit"]) == (0, str(finished), True)
    assert "load:vae: cached" in err
