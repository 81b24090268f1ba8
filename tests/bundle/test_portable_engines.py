"""A build for a GPU that is not here, by a product that builds without one: engines and all."""

import json

import pytest

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.build import plan_finish
from vidc.compiler.cli import main
from vidc.compiler.portable.read import open_portable

SMALL = (
    "model.layers=1",
    "stream.height=16",
    "stream.width=32",
    "stream.window=6",
    "vae.base_dim=4",
)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """What `vidc build` leaves, its exit status and what it says."""
    output = tmp_path_factory.mktemp("begun") / "bundle"
    arguments = ["build", "tiny", "--gpu", "rtx4090", "--precision", "fp16", "-o", str(output)]
    arguments += ["--random-weights", "1", *(a for s in SMALL for a in ("--set", s))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIDC_CACHE", str(output.with_name("cache")))
        with pytest.raises(SystemExit) as exited:
            main(arguments)
    return output.with_name("bundle.portable"), exited.value.code


def test_engines_are_built_and_the_rest_is_left(begun):
    folder, status = begun
    assert status == 3
    stages = json.loads((folder / "build.json").read_text())["stages"]
    built = {name.removeprefix("compile:") for name in stages if name.startswith("compile:")}
    exported = {name.removeprefix("export:") for name in stages if name.startswith("export:")}
    assert built == exported >= {"denoise", "kv_update", "vae_decode"}
    for name in built:
        plan = folder / "compile" / name / "engines" / "tensorrt" / f"{name}.plan"
        assert plan.read_bytes()[:4] == b"vtrt"
    engine = json.loads((folder / "compile" / "denoise" / "engine.json").read_text())
    assert engine["loader"] == "tensorrt"
    assert engine["options"] == {"product": "tensorrt_rtx"}


def test_the_machine_with_the_gpu_compiles_nothing(begun, tmp_path):
    folder, _ = begun
    portable = open_portable(folder)
    rows = {
        row.stage: row for row in plan_finish(portable, tmp_path / "bundle", tmp_path / "cache")
    }
    assert rows["compile:denoise"].key == portable.document.stages["compile:denoise"].components.key
    assert [name for name in rows if name not in portable.document.stages] == ["golden", "package"]


def test_it_is_not_finished_where_the_gpu_is_missing(begun, capsys):
    folder, _ = begun
    with pytest.raises(SystemExit) as exited:
        main(["build", str(folder)])
    assert exited.value.code == 3
    assert "VIDC-PORTABLE-MACHINE" in capsys.readouterr().err
