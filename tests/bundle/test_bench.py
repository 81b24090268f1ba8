"""`vidc bench` on a bundle: what it gives, and what it refuses; how fast is not tested."""

import json
import shutil

import pytest

from vidc.compiler.bench.metrics import Decoding
from vidc.compiler.bench.usage import Disturbance
from vidc.compiler.cli import main
from vidc.compiler.validate.golden import prompt_files

ONCE = ("--samples", 1, "--warmup", 0, "--cold-starts", 0)
QUICK = ("--samples", 6, "--warmup", 1, "--cold-starts", 0)


@pytest.fixture
def vidc(capsys, monkeypatch, project):
    """Runs `vidc bench`; gives its status, stdout and stderr."""
    monkeypatch.setenv("VIDC_CACHE", str(project.cache))
    monkeypatch.setattr(Disturbance, "share", lambda self: 0.0)

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main(["bench", *map(str, arguments)])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return run


def test_bench_beside_the_baseline(vidc, project, tmp_path):
    page = tmp_path / "b.html"
    status, out, err = vidc(
        project.bundle, "--against", "eager", "--samples", 6, "--warmup", 1, "--cold-starts", 1,
        "--report", page, "--json",
    )  # fmt: skip
    assert status == 0, err
    document = json.loads(out)
    assert (document["schema"], document["passed"]) == (1, True)
    metrics = Decoding("vae", "VAE").metrics
    on_a_cpu = [name for name in metrics if name not in ("peak_cuda_bytes", "device_bytes")]
    assert list(document["metrics"]) == on_a_cpu
    assert list(document["baselines"]["eager"]) == [n for n in on_a_cpu if n != "build_s"]
    for name in ("block_ms", "vae_ms", "stream_ms", "switch_ms", "switch_block_ms"):
        assert document["metrics"][name]["n"] == 6
        assert min(document["metrics"][name]["samples"]) > 0
    (steps,) = document["cold_starts"]
    assert list(steps) == ["imported", "loaded", "prompted", "framed"]
    assert sorted(steps.values()) == list(steps.values())
    assert document["metrics"]["cold_start_s"]["samples"] == [steps["framed"]]
    assert document["metrics"]["build_s"]["median"] > 0
    assert document["workload"]["window"] == 8
    assert {row["against"] for row in document["verdicts"]} == {"eager"}
    assert page.read_text().startswith("<!doctype html>")
    kept = json.loads(page.with_suffix(".json").read_text())
    assert kept == {name: value for name, value in document.items() if name != "report"}


def test_a_stored_result_is_compared_with(vidc, project, tmp_path):
    status, out, _ = vidc(project.bundle, *QUICK, "--report", tmp_path / "first.html")
    assert status == 0
    assert "VAE decode of a block" in out
    first = tmp_path / "first.json"
    document = json.loads(first.read_text())

    def scaled(factor):
        for metric in document["metrics"].values():
            metric["samples"] = [factor * abs(sample) for sample in metric["samples"]]
        first.write_text(json.dumps(document))

    scaled(1e-3)
    again = (project.bundle, *QUICK, "--compare", first, "--report", tmp_path / "second.html")
    status, out, err = vidc(*again)
    assert (status, "VIDC-BENCH-SLOWER" in err) == (1, True), err
    assert "slower" in out
    assert "Slower than before" in (tmp_path / "second.html").read_text()
    assert json.loads((tmp_path / "second.json").read_text())["passed"] is False
    scaled(1e6)
    status, out, err = vidc(*again)
    assert status == 0, err
    assert "against first.json" in out
    assert "faster" in out


def test_a_build_that_the_cache_forgot_is_told(vidc, project, tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(tmp_path / "empty"))
    status, out, _ = vidc(project.bundle, *ONCE, "--report", tmp_path / "b.html", "--json")
    document = json.loads(out)
    assert status == 0
    assert "build_s" not in document["metrics"]
    assert any(note.startswith("build time:") for note in document["notes"])


def test_what_is_refused_before_anything_is_loaded(vidc, project, tmp_path, monkeypatch):
    monkeypatch.setattr("vidc.compiler.bench.run.load_bundle", None)
    (tmp_path / "file").write_text("")
    (tmp_path / "r.json").write_text("{}")
    for arguments, code in (
        (["nowhere"], "VIDC-BUNDLE-NOT"),
        ([project.bundle, "--against", "eagre"], "did you mean 'eager'"),
        ([project.bundle, "--compare", tmp_path / "none.json"], "VIDC-BENCH-RESULT"),
        ([project.bundle, "--compare", tmp_path / "r.json"], "VIDC-BENCH-RESULT"),
        ([project.bundle, "--report", tmp_path], "VIDC-BENCH-REPORT"),
        ([project.bundle, "--report", tmp_path / "no" / "b.html"], "VIDC-BENCH-REPORT"),
        ([project.bundle, "--report", tmp_path / "b.json"], "VIDC-BENCH-REPORT"),
        (
            [project.bundle, "--compare", tmp_path / "r.json", "--report", tmp_path / "r.html"],
            "VIDC-BENCH-REPORT",
        ),
        ([project.bundle, "--samples", "0"], "VIDC-CLI-USAGE"),
    ):
        report = () if "--report" in arguments else ("--report", tmp_path / "b.html")
        status, out, err = vidc(*arguments, *report)
        assert (status, out, code in err) == (2, "", True), err


def test_a_stream_that_fails_alone_is_reported(vidc, project, tmp_path):
    bundle = shutil.copytree(project.bundle, tmp_path / "bundle")
    with (bundle / "weights" / "vae.safetensors").open("ab") as file:
        file.write(b"more")
    status, out, err = vidc(bundle, "--cold-starts", 1, "--report", tmp_path / "b.html")
    assert (status, out) == (3, "")
    assert "VIDC-BENCH-PROCESS" in err
    assert "VIDC-BUNDLE-" in err


def test_a_bundle_without_prompts_is_refused(vidc, project, tmp_path):
    bundle = shutil.copytree(project.bundle, tmp_path / "bundle")
    for file in prompt_files(bundle):
        file.unlink()
    status, out, err = vidc(bundle, *QUICK, "--report", tmp_path / "b.html")
    assert (status, out, "VIDC-VALIDATE-GOLDEN" in err) == (1, "", True), err


def test_a_profile_counts_every_component(vidc, project, tmp_path, monkeypatch):
    monkeypatch.setattr("vidc.compiler.bench.clock._SIDES", {"cpu": (64, 128)})
    monkeypatch.setattr("vidc.compiler.bench.clock._COPIED", {"cpu": 2**20})
    page = tmp_path / "b.html"
    status, out, err = vidc(project.bundle, *QUICK, "--profile", "--report", page, "--json")
    assert status == 0, err
    profile = json.loads(out)["profile"]
    assert set(profile["peaks"]) == {"fp32", "memory"}
    rows = {row["component"]: row for row in profile["components"]}
    assert rows.keys() == {
        "text_kv", "denoise", "kv_update", "recache_5", "recache_6", "vae_decode",
    }  # fmt: skip
    assert (rows["denoise"]["calls"], rows["recache_5"]["calls"]) == (4, 0)
    for row in rows.values():
        assert row["ms"]["n"] == 20
        seconds = row["ms"]["median"] / 1e3
        assert row["tflops"]["value"] == pytest.approx(row["tflop"] / seconds)
        assert row["gbps"]["value"] == pytest.approx(row["gigabytes"] / seconds)
    assert set(profile["kernels"]) == {"block", "vae", "switch"}
    assert all(profile["kernels"].values())
    assert "Where the time goes" in page.read_text()


def test_a_sweep_builds_variants_and_compares_their_output(vidc, project, tmp_path):
    page = tmp_path / "b.html"
    status, out, err = vidc(
        project.bundle, *ONCE, "--report", page, "--json",
        "--sweep", "steps=[1000,750,500,250],[1000,500]",
    )  # fmt: skip
    assert status == 0, err
    sweep = json.loads(out)["sweep"]
    assert sweep["key"] == "sampler.steps"
    same, fewer = sweep["rows"]
    assert same["value"] == "[1000,750,500,250]"
    assert same["change"] == {"relative_l2": 0.0, "psnr_db": None, "ssim": pytest.approx(1.0)}
    assert fewer["change"]["relative_l2"] > 0.01
    assert fewer["change"]["psnr_db"] > 0
    for row in (same, fewer):
        assert row["metrics"]["block_ms"]["n"] == 1
        assert {"block_ms", "vae_ms", "switch_ms"} <= row["verdicts"].keys()
    assert "Sweep of sampler.steps" in page.read_text()


def test_a_report_never_goes_into_the_bundle_or_to_a_folder(vidc, project):
    for report in (project.bundle / "manifest.html", project.bundle / "engines/new.html", "", "/"):
        status, out, err = vidc(project.bundle, *ONCE, "--report", report)
        assert (status, out, "VIDC-BENCH-REPORT" in err) == (2, "", True), err


def test_a_sweep_of_a_changed_manifest_is_refused(vidc, project, tmp_path):
    bundle = shutil.copytree(project.bundle, tmp_path / "changed")
    manifest = json.loads((bundle / "manifest.json").read_text())
    del manifest["config"]["backend"]
    (bundle / "manifest.json").write_text(json.dumps(manifest))
    status, out, err = vidc(bundle, *ONCE, "--sweep", "window=9")
    assert (status, out, "VIDC-BUNDLE-RECORD" in err) == (1, "", True), err


def test_a_sweep_that_cannot_be_is_refused_before_anything_is_loaded(vidc, project, tmp_path):
    for swept, code in (
        ("windw=6", "VIDC-CONFIG-SETTING"),
        ("window=8,4", "VIDC-CONFIG-SIZES"),
        ("window", "VIDC-BENCH-SWEEP"),
    ):
        status, out, err = vidc(
            project.bundle, *QUICK, "--report", tmp_path / "b.html", "--sweep", swept
        )
        assert (status, out, code in err) == (2, "", True), err
        assert "loading" not in err
