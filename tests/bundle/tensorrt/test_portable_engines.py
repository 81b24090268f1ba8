"""A build for a GPU that is not here, by a product that builds without one: engines and all."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import quantized
import small_taehv

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends.tensorrt.network import parse
from vidc.compiler.build.handed_over import open_portable, rest
from vidc.compiler.build.load import Load, read_source
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import stages
from vidc.compiler.cli import main
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.resolve import resolve
from vidc.compiler.inspect.plan import inspect_plan
from vidc.compiler.quantize.artifact import write_calibration
from vidc.compiler.store.plan import Status, plan
from vidc.compiler.store.run import run
from vidc.compiler.store.stage import Workspace
from vidc.compiler.store.store import Store
from vidc.plugins.errors import BuildError

SMALL = (
    "model.layers=1",
    "stream.height=16",
    "stream.width=32",
    "stream.window=6",
    "vae.kind=taehv",
    *small_taehv.SIZES,
)


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """Runs `vidc build`, of which it returns what it leaves and its exit status."""
    cache = tmp_path_factory.mktemp("cache")

    def run(*more):
        output = tmp_path_factory.mktemp("begun") / "bundle"
        arguments = ["build", "tiny", "--gpu", "rtx4090", "--precision", "fp16", "-o", str(output)]
        arguments += ["--random-weights", "1", *(a for s in SMALL for a in ("--set", s)), *more]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VIDC_CACHE", str(cache))
            with pytest.raises(SystemExit) as exited:
                main(arguments)
        return output.with_name("bundle.portable"), exited.value.code

    return run


@pytest.fixture(scope="module")
def begun(build):
    return build()


@pytest.fixture(scope="module")
def calibration(tmp_path_factory):
    """A calibration of the weights that the build draws, with ranges that are drawn, too."""
    config = resolve("tiny", gpu="cpu", assignments=SMALL, environ={}).model
    workspace = Workspace(tmp_path_factory.mktemp("loaded"), {}, print)
    Load(config.parts["transformer"], type(config), "fp16", 1).run(workspace)
    made = quantized.calibration(config, reach=3.0)
    digest = read_source(workspace.output)["digest"]
    folder = tmp_path_factory.mktemp("calibration")
    write_calibration(folder, replace(made.document, weights=digest), made.tensors)
    return folder


def test_engines_are_built_and_the_rest_is_left(begun):
    folder, status = begun
    assert status == 3
    stages = json.loads((folder / "build.json").read_text())["stages"]
    built = {name.removeprefix("compile:") for name in stages if name.startswith("compile:")}
    exported = {name.removeprefix("export:") for name in stages if name.startswith("export:")}
    assert built == exported >= {"denoise", "kv_update", "taehv_decode"}
    for name in built:
        plan = folder / "compile" / name / "engines" / "tensorrt" / f"{name}.plan"
        assert plan.read_bytes()[:4] == b"vtrt"
    engine = json.loads((folder / "compile" / "denoise" / "engine.json").read_text())
    assert engine["loader"] == "tensorrt"
    assert engine["options"] == {"product": "tensorrt_rtx"}


def test_the_machine_with_the_gpu_compiles_nothing(begun, tmp_path):
    folder, _ = begun
    portable = open_portable(folder)
    plan = rest(portable).plan(tmp_path / "bundle", tmp_path / "cache")
    rows = {row.stage: row for row in plan}
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
    made = [s for s in stages(settings, Sources({}, seed=1)) if s.name.endswith(wanted)]
    monkeypatch.setattr("vidc.compiler.backends.tensorrt.network.parse", parse_for_little_memory)
    with Store(tmp_path) as store:
        # In this process, which has the stand-in.
        with pytest.raises(BuildError, match="kv_update: TensorRT-RTX ran out of mem") as caught:
            run(made, store, "slot", LineProgress())
        rows = plan(made, store, "slot")
    assert caught.value.code == "VIDC-TENSORRT-MEMORY"
    kept = {row.stage for row in rows if row.status is Status.HIT}
    assert kept == {"export:text_kv", "export:kv_update", "compile:text_kv"}


@pytest.mark.parametrize("precision", ["fp8", pytest.param("int8", marks=pytest.mark.deep)])
def test_a_build_in_8_bits_has_engines_of_8_bits(build, begun, calibration, precision):
    assert begun[1] == 3
    folder, status = build(
        "--set", f"precision.transformer={precision}", "--calibration", str(calibration)
    )
    assert status == 3
    stages = json.loads((folder / "build.json").read_text())["stages"]
    assert {name for name in stages if name.startswith("quantize:")} == {"quantize:transformer"}
    for name, products in {"text_kv": 2, "denoise": 8, "kv_update": 2, "taehv_decode": 0}.items():
        found = inspect_plan(folder / f"compile/{name}/engines/tensorrt/{name}.plan")
        assert len(found.plan.products) == len(found.network.quantized) == products
        assert found.unfused == ()
        assert {p.weights for p in found.network.quantized} <= {precision}
    engine = json.loads((folder / "compile" / "denoise" / "engine.json").read_text())
    assert engine["notes"] == []


def test_rings_in_8_bits_whose_sizes_no_kernel_supports_are_refused(build, calibration, capsys):
    """The heads of ``tiny`` have 32 channels."""
    _, status = build(
        "--set", "precision.transformer=fp8", "--recipe", "fp8", "--calibration", str(calibration)
    )
    assert status == 3
    assert "VIDC-RECIPE-LOWERING" in capsys.readouterr().err
