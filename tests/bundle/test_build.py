"""From settings to a published bundle: what runs, what is found, what is left when it fails."""

import errno
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from vidc.compiler.build import package as packaging
from vidc.compiler.build.build import whole
from vidc.compiler.build.load import read_source
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import load_stage
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.store import publish
from vidc.compiler.store import stage as keys
from vidc.compiler.store.plan import Status
from vidc.compiler.store.sources import source_digest
from vidc.compiler.store.stage import Workspace
from vidc.compiler.validate import check
from vidc.plugins.errors import BuildError, GateError, UsageError
from vidc.runtime import files, integrity, manifest
from vidc.runtime.integrity import file_entry, verify
from vidc.runtime.manifest import read_manifest


def not_hit(project, *assignments: str, **sources) -> set[str]:
    rows = rows_of(project, *assignments, **sources)
    return {stage for stage, row in rows.items() if row.status is not Status.HIT}


def rows_of(project, *assignments: str, **changed):
    settings, sources = project.resolve(*assignments)
    rows = whole(settings, replace(sources, **changed)).plan(project.bundle, project.cache)
    return {row.stage: row for row in rows}


def rebuild(project, output: Path):
    return whole(*project.resolve()).run(output, project.cache, LineProgress())


def test_a_second_build_finds_everything(project):
    assert not_hit(project) == set()
    assert all(stage.hit for stage in rebuild(project, project.bundle).stages)


def test_every_component_is_there(project):
    settings, _ = project.resolve()
    expected = settings.model.components
    made = [
        name
        for part in settings.model.parts.values()
        for name in part.components(part.network("fp32"))
    ]
    assert sorted(made) == sorted(expected)
    assert set(read_manifest(project.bundle).engines) == set(expected)


def built(*components: str) -> set[str]:
    """The stages that make these components' engines."""
    return {f"{stage}:{name}" for stage in ("export", "compile") for name in components}


PASSES = ("denoise", "kv_update")
VAE = ("vae_decode_first", "vae_decode", "vae_encode_first", "vae_encode")


@pytest.mark.parametrize(
    ("assignment", "reached"),
    [
        ("sampler.shift=3.0", {"golden"}),
        ("validate.blocks=9", {"golden"}),
        ('validate.prompts=["a fox", "a hen"]', {"golden"}),
        (
            "model.text_len=12",
            {
                "load:text_encoder",
                "load:transformer",
                "golden",
                *built("text_encoder", "text_kv", *PASSES, "recache_5", "recache_6"),
            },
        ),
        (
            "stream.window=9",
            {"golden", *built(*PASSES, "recache_6", "recache_9")},
        ),
    ],
)
def test_a_setting_reaches_its_stages_alone(project, assignment, reached):
    rows = rows_of(project, assignment)
    ran = {name for name, row in rows.items() if row.status is not Status.HIT}
    assert ran == reached | {"package"}
    name = assignment.partition("=")[0].rpartition(".")[2]
    assert any(name in reason for stage in reached for reason in rows[stage].reasons)


def test_a_size_of_the_vae_reaches_its_stages_alone(project, tmp_path):
    pipeline = shutil.copytree(project.pipeline, tmp_path / "pipeline")
    config = pipeline / "vae" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_res_blocks": 2}))
    found = not_hit(replace(project, pipeline=pipeline), "vae.res_blocks=2")
    assert found == {"load:vae", "golden", *built(*VAE), "package"}


def test_other_weights_build_no_engine_again(project):
    assert not_hit(project, checkpoints={}, seed=2) == {
        "load:transformer", "load:vae", "load:text_encoder", "golden", "package",
    }  # fmt: skip


def test_a_failed_validation_publishes_nothing(project, tmp_path, monkeypatch):
    thresholds = check.validate

    def strict(*arguments):
        validation = thresholds(*arguments)
        gate = validation.comparison.gates[0]
        object.__setattr__(gate, "threshold", 0.0)
        return validation

    monkeypatch.setattr(check, "validate", strict)
    output = tmp_path / "strict"
    with pytest.raises(GateError, match="VIDC-VALIDATE-FAILED") as failure:
        rebuild(project, output)
    assert "text_kv: relative_l2" in str(failure.value)
    assert [path.name for path in tmp_path.iterdir()] == ["strict.report.html"]


def test_what_is_no_bundle_is_not_replaced(project, tmp_path):
    """And nothing is built for it."""
    output, cache = tmp_path / "out", tmp_path / "cache"
    output.mkdir()
    (output / "thesis.tex").write_text("three years")
    with pytest.raises(UsageError, match="VIDC-BUILD-OUTPUT"):
        whole(*project.resolve()).run(output, cache, LineProgress())
    with pytest.raises(UsageError, match="VIDC-BUILD-OUTPUT"):
        whole(*project.resolve()).plan(output, cache)
    assert (output / "thesis.tex").read_text() == "three years"
    assert not cache.exists()


def test_an_altered_bundle_is_made_again(project, tmp_path, monkeypatch):
    """Packaging knows the digests of copied files; the new name is on disk when it is done."""
    hashed, synced = [], []
    monkeypatch.setattr(packaging, "file_entry", lambda p: hashed.append(p.name) or file_entry(p))
    monkeypatch.setattr(publish, "sync", synced.append)
    output = tmp_path / "copy"
    shutil.copytree(project.bundle, output)
    (output / "denoise.onnx").write_bytes(b"")
    built = rebuild(project, output)
    assert [stage.name for stage in built.stages if not stage.hit] == ["package"]
    assert hashed == ["report.html", "validated.json"]
    assert synced == [tmp_path]
    verify(output, read_manifest(output), "full")


@pytest.fixture
def small_chunks(monkeypatch):
    """Chunks of 64 KiB, so that this bundle's weights have some."""
    for module in (files, integrity, manifest):
        monkeypatch.setattr(module, "CHUNK_BYTES", 2**16)
    monkeypatch.setattr(integrity, "_READ", 2**16)


def test_large_files_have_digests_of_their_chunks(project, tmp_path, small_chunks):
    output = tmp_path / "chunked"
    rebuild(project, output)
    entries = read_manifest(output).files
    assert entries["weights/transformer.safetensors"].chunks
    verify(output, read_manifest(output), "full")


def test_a_damaged_result_in_the_cache_is_built_again(project, tmp_path):
    cache = tmp_path / "cache"
    shutil.copytree(project.cache, cache, copy_function=os.link)
    stages = rebuild(project, project.bundle).stages
    (key,) = (stage.key for stage in stages if stage.name == "load:vae")
    weights = next(cache.rglob(f"{key}/output/weights/vae.safetensors"))
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    output = tmp_path / "again"
    built = whole(*project.resolve()).run(output, cache, LineProgress())
    assert [stage.name for stage in built.stages if not stage.hit] == ["load:vae", "package"]
    assert read_manifest(output).files == read_manifest(project.bundle).files


def test_a_large_file_that_is_damaged_by_its_copy_is_not_packaged(
    project, tmp_path, small_chunks, monkeypatch
):
    def copy(source, target):
        data = bytearray(source.read_bytes())
        if target.name == "vae.safetensors":
            data[-1] ^= 1
        target.write_bytes(data)

    monkeypatch.setattr(packaging.shutil, "copyfile", copy)
    output = tmp_path / "damaged"
    with pytest.raises(GateError, match=r"VIDC-BUNDLE-ALTERED.*vae\.safetensors"):
        rebuild(project, output)
    assert not output.exists()


def test_a_stage_that_gave_the_same_output_again_packages_nothing(project, tmp_path):
    output = tmp_path / "copy"
    shutil.copytree(project.bundle, output)
    document = json.loads((output / "manifest.json").read_text())
    document["stages"]["export:denoise"] = "0" * 64
    (output / "manifest.json").write_text(json.dumps(document))
    assert rebuild(project, output).stages[-1].hit


def test_what_judges_a_bundle_is_in_its_key(project, tmp_path, monkeypatch):
    entries = whole(*project.resolve()).last.key().entries

    def changed(asked):
        return "changed" if asked == entries else source_digest(asked)

    for name in ("thresholds.toml", "report.html.j2", "base.html.j2"):
        (tmp_path / name).write_text("changed")
    monkeypatch.setattr(keys, "source_digest", changed)
    monkeypatch.setattr(packaging, "files", lambda _: tmp_path)
    row = rows_of(project)["package"]
    assert row.status is Status.STALE
    assert row.reasons == ("files.page", "files.report", "files.thresholds", "sources")
    assert {"vidc.runtime.engines.onnxruntime", "vidc.runtime.engines.aoti"} <= set(entries)


def test_a_full_disk_under_the_output_is_not_the_cache_s(project, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(BuildError, match="VIDC-BUILD-DISK") as error:
        rebuild(project, tmp_path / "out")
    assert "-o" in error.value.hint
    assert "cache" not in error.value.hint
    assert list(tmp_path.iterdir()) == []


def test_an_interrupted_replacement_is_undone(project, tmp_path):
    output = tmp_path / "copy"
    older = tmp_path / ".copy.old"
    shutil.copytree(project.bundle, older)
    document = json.loads((older / "manifest.json").read_text())
    rebuild(project, output)
    assert not older.exists()
    assert (
        json.loads((output / "manifest.json").read_text())["files"].keys()
        == document["files"].keys()
    )


def test_the_manifest_says_where_weights_come_from(project):
    weights = read_manifest(project.bundle).weights
    assert weights["transformer"].source["layout"] == "diffusers WanTransformer3DModel"
    assert weights["vae"].source["files"] == ["diffusion_pytorch_model.safetensors"]
    assert weights["text_encoder"].source["files"] == ["model.safetensors"]


def test_random_weights_are_named(project, tmp_path):
    settings, _ = project.resolve()
    stage = load_stage(settings, Sources({}, seed=5), "vae")
    stage.run(Workspace(tmp_path, {}, print))
    source = read_source(tmp_path)
    assert source == {"random_weights": 5, "digest": source["digest"]}
    assert len(source["digest"]) == 64


def test_weights_are_those_of_the_stage(project):
    manifest = read_manifest(project.bundle)
    assert {w.path for w in manifest.weights.values()} == {
        str(Path("weights") / f"{group}.safetensors")
        for group in ("transformer", "vae", "text_encoder")
    }
    stored = [p for p in project.bundle.rglob("*") if p.is_file() and p.stat().st_size > 10**6]
    assert {p.parent.name for p in stored} <= {"weights", "golden"}


def test_the_process_of_a_build_imports_few_modules(project, tmp_path):
    """Stages and validation run in worker processes; the command's own is quick to start."""
    script = (
        "import sys\n"
        "from vidc.compiler.cli import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print(*(name for name in sys.modules if name.startswith('vidc.')), file=sys.stderr)\n"
    )
    # The changed scenario leaves one stage to a worker, which validates the bundle as well.
    changed = ("--set", "validate.level=component", "-o", str(tmp_path / "bundle"))
    source = ("--gpu", "cpu", "--checkpoint", str(project.pipeline))
    done = subprocess.run(
        [sys.executable, "-c", script, "build", str(project.preset), *source, *changed],
        env={**os.environ, "VIDC_CACHE": str(project.cache)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    modules = done.stderr.splitlines()[-1].split()
    assert "vidc.compiler.build.package" in modules
    assert "vidc.compiler.validate.check" not in modules
    assert len(modules) <= 110
