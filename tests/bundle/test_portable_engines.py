"""A build for a GPU that is not here, by a product that builds without one: engines and all."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.build import plan_finish
from vidc.compiler.cli import main
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.graph import Sources, portable_stages
from vidc.compiler.pipeline.plan import Status, plan
from vidc.compiler.pipeline.run import run
from vidc.compiler.pipeline.store import Store
from vidc.compiler.portable.read import open_portable
from vidc.compiler.settings.resolve import resolve
from vidc.compiler.tensorrt.network import parse
from vidc.plugins.errors import BuildError

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


def test_out_of_memory_names_the_component_and_costs_no_other(tmp_path, monkeypatch):
    """The memory is a stand-in's; the rest is the product."""

    def parse_for_little_memory(component, graph, product):
        network = parse(component, graph, product)
        if component != "kv_update":
            return network
        builder = SimpleNamespace(
            create_builder_config=network.builder.create_builder_config,
            build_serialized_network=exhaust,
        )
        return replace(network, builder=builder, keep=(network.builder, *network.keep))

    def exhaust(definition, config):
        raise MemoryError("std::bad_alloc")

    settings = resolve("tiny", gpu="rtx4090", precision="fp16", assignments=SMALL, environ={})
    wanted = ("text_kv", "kv_update")
    stages = [
        stage
        for stage in portable_stages(settings, Sources({}, seed=1))
        if stage.name.endswith(wanted)
    ]
    monkeypatch.setattr("vidc.compiler.tensorrt.network.parse", parse_for_little_memory)
    with Store(tmp_path) as store:
        # In this process, which has the stand-in.
        with pytest.raises(BuildError, match="kv_update: TensorRT-RTX ran out of mem") as caught:
            run(stages, store, "slot", LineProgress())
        rows = plan(stages, store, "slot")
    assert caught.value.code == "VIDC-TENSORRT-MEMORY"
    kept = {row.stage for row in rows if row.status is Status.HIT}
    assert kept == {"export:text_kv", "export:kv_update", "compile:text_kv"}
