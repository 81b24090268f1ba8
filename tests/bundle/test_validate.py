"""`vidc validate` on a command line: reports, videos and refusals."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import av
import pytest
import torch

from vidc.compiler.cli import main
from vidc.compiler.validate.golden import Golden
from vidc.plugins.errors import GateError
from vidc.runtime.manifest import read_manifest, write_manifest


@pytest.fixture
def vidc(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["validate", *map(str, arguments)])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def test_a_report_without_a_place_is_refused_before_anything_is_loaded(vidc, project, tmp_path):
    (tmp_path / "file").write_text("")
    for page in (tmp_path / "nowhere" / "r.html", tmp_path, tmp_path / "file" / "r.html"):
        status, out, err = vidc(project.bundle, "--report", page)
        assert (status, out) == (2, "")
        assert "VIDC-VALIDATE-REPORT" in err
        assert "loading" not in err


def test_passing_bundle_gets_no_second_report(vidc, project, tmp_path):
    shutil.copytree(project.bundle, tmp_path / "bundle")
    status, out, err = vidc(tmp_path / "bundle", "--json")
    assert (status, json.loads(out)["report"]) == (0, None), err
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    assert tree(tmp_path / "bundle") == tree(project.bundle)


def test_figures_are_printed_though_the_report_cannot_be_written(vidc, project, tmp_path):
    page = tmp_path / "r.html"
    page.symlink_to("/dev/full")
    status, out, err = vidc(project.bundle, "--report", page, "--json")
    assert (status, json.loads(out)["passed"]) == (2, True)
    assert "VIDC-VALIDATE-REPORT" in err


def tree(folder: Path) -> dict[Path, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): path.read_bytes() for path in files}


def test_a_video_shows_reference_engine_and_difference(vidc, project, tmp_path):
    before = tree(project.bundle)
    video = tmp_path / "v.mp4"
    status, out, err = vidc(
        project.bundle, "--report", tmp_path / "r.html", "--video", video, "--json"
    )
    document = json.loads(out)
    assert (status, document["video"]) == (0, str(video)), err
    with av.open(str(video)) as opened:
        frames = [frame.to_ndarray(format="rgb24") for frame in opened.decode(video=0)]
    assert len(frames) == 9 + 7 * 12
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "v.mp4"]
    # A bundle is immutable.
    assert tree(project.bundle) == before


def test_every_block_and_component_has_its_figures(vidc, project, tmp_path):
    status, out, _ = vidc(project.bundle, "--report", tmp_path / "r.html", "--json")
    document = json.loads(out)
    assert status == 0
    assert {row["component"] for row in document["components"]} == {
        *read_manifest(project.bundle).engines
    }
    for row in [*document["components"], *document["rollout"]]:
        error, sqnr = row["relative_l2"], row["sqnr_db"]
        if error:
            assert sqnr == pytest.approx(-20 * torch.tensor(error).double().log10().item(), abs=0.1)
    for row in document["rollout"]:
        assert row["ssim"] > 0.99
        assert row["psnr_db"] is None or row["psnr_db"] > 40
    references = [row["frames_reference"] for row in document["rollout"]]
    assert references == [
        "golden", "golden", "decoded", "decoded", "decoded", "golden", "decoded", "golden",
    ]  # fmt: skip
    assert document["lpips"]["measured"] is False
    assert document["lpips"]["reason"]
    assert 0 < len(document["worst_tensors"]) <= 6
    html = (tmp_path / "r.html").read_text()
    assert "LPIPS is not measured" in html
    assert "Tensors that err most" in html


def test_a_video_or_a_report_without_a_place_is_refused_first(vidc, project, tmp_path):
    report = ("--report", tmp_path / "r.html")
    inside = project.bundle / "golden"
    (tmp_path / "link").symlink_to(project.bundle)
    for arguments, code in (
        ([*report, "--video", tmp_path / "nowhere" / "v.mp4"], "VIDC-VALIDATE-VIDEO"),
        ([*report, "--video", tmp_path / "v.avi"], "VIDC-VIDEO-SUFFIX"),
        ([*report, "--video", inside / "v.mp4"], "VIDC-VALIDATE-VIDEO"),
        ([*report, "--video", tmp_path / "link" / "v.mp4"], "VIDC-VALIDATE-VIDEO"),
        (["--report", inside / "r.html"], "VIDC-VALIDATE-REPORT"),
        (["--report", project.bundle / "report.html"], "VIDC-VALIDATE-REPORT"),
    ):
        status, out, err = vidc(project.bundle, *arguments)
        assert (status, out, code in err) == (2, "", True), err
        assert "loading" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_a_bundle_without_a_rollout_has_no_video(vidc, project, tmp_path, monkeypatch):
    document = read_manifest(project.bundle)
    alone = replace(document, validation=replace(document.validation, level="component"))
    monkeypatch.setattr("vidc.runtime.manifest.read_manifest", lambda folder: alone)
    status, out, err = vidc(
        project.bundle, "--report", tmp_path / "r.html", "--video", tmp_path / "v.mp4"
    )
    assert (status, out) == (2, "")
    assert "VIDC-VALIDATE-VIDEO" in err
    assert "no rollout" in err


def test_figures_are_printed_though_the_video_cannot_be_written(
    vidc, project, tmp_path, monkeypatch
):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("vidc.runtime.video._Gif.finish", full)
    status, out, err = vidc(
        project.bundle, "--report", tmp_path / "r.html", "--video", tmp_path / "v.gif", "--json"
    )
    document = json.loads(out)
    assert (status, document["passed"], "video" in document) == (3, True, False)
    assert "VIDC-VIDEO-WRITE" in err
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_gate_that_fails_is_told_where_nothing_can_be_shown(vidc, project, tmp_path, monkeypatch):
    monkeypatch.setattr("vidc.compiler.validate.compare._frames", lambda *_: [])
    status, out, err = vidc(
        project.bundle, "--report", tmp_path / "r.html", "--video", tmp_path / "v.mp4", "--json"
    )
    document = json.loads(out)
    assert (status, document["passed"], "video" in document) == (1, False, False)
    assert "VIDC-VALIDATE-FAILED" in err
    assert "there is no video" in err
    assert document["rollout"][0]["frames_reference"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_a_bundle_without_golden_data_is_refused_by_name(vidc, project, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(project.bundle, copy)
    shutil.rmtree(copy / "golden")
    with pytest.raises(GateError, match="VIDC-VALIDATE-GOLDEN"):
        Golden.load(copy)
    status, out, err = vidc(copy)
    assert (status, out, "VIDC-BUNDLE-MISSING" in err) == (1, "", True), err
    document = read_manifest(copy)
    files = {n: f for n, f in document.files.items() if not n.startswith("golden/")}
    write_manifest(replace(document, files=files), copy)
    status, out, err = vidc(copy)
    assert (status, out, "VIDC-VALIDATE-GOLDEN" in err) == (1, "", True), err
