"""A family of another package through the command line, where vidc's networks are missing."""

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import onnx
import polygraphy_tool
import pytest
import toy_family
from PIL import Image
from safetensors.torch import load_file
from toy_program import Clip

from vidc.compiler.backends.tensorrt.plan import describe_plan
from vidc.compiler.debug.golden_calls import require_graphs
from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.play import Player
from vidc.exporters.families import find_family
from vidc.plugins.errors import UsageError
from vidc.runtime import load
from vidc.runtime.manifest import read_manifest

RECIPE = """
description = "Every linear layer of the mixer in INT8, static scales"
[[linear]]
layers = ["*"]
weights = "int8"
activations = "int8"
scale = "static"
"""
BLOCKED = """
import sys
for name in (
    "exporters.families.causal_video", "exporters.parts.causal_wan", "exporters.parts.umt5",
    "exporters.parts.wan_vae", "runtime.programs.causal_video", "runtime.programs.stream",
):
    sys.modules["vidc." + name] = None
"""
SOURCE = ("small.toml", "--gpu", "cpu", "--random-weights", "1")
VIDC = "from vidc.compiler.cli import main; main()"


class CommandLine:
    """``vidc`` in processes that cannot import the networks and the program of another family."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "small.toml").write_text(toy_family.PRESET.format(width=32))
        (folder / "int8.toml").write_text(RECIPE)
        # Python imports it first, in the processes that `vidc bench` starts as well.
        (folder / "sitecustomize.py").write_text(BLOCKED)
        path = os.pathsep.join([str(folder), str(Path(toy_family.__file__).parent)])
        self._environ = {**os.environ, "PYTHONPATH": path, "VIDC_CACHE": str(folder / "cache")}

    def __call__(self, *arguments):
        return subprocess.run(
            [sys.executable, "-c", VIDC, *map(str, arguments)],
            cwd=self.folder, env=self._environ, capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def json(self, *arguments):
        done = self(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def cli(tmp_path_factory):
    return CommandLine(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def bundle(cli):
    """The toy in INT8, on ranges that `vidc calibrate` recorded."""
    cli.json("calibrate", *SOURCE, "-n", "4", "-o", "ranges")
    quantized = ("--precision", "int8", "--recipe", "int8.toml", "--calibration", "ranges")
    cli.json("build", *SOURCE, *quantized, "-o", "bundle")
    return cli.folder / "bundle"


def test_other_families_cannot_be_imported(cli):
    done = cli("build", "tiny", *SOURCE[1:])
    assert done.returncode == 4
    assert "import of vidc.exporters.families.causal_video halted" in done.stderr


def test_its_weights_are_those_it_draws(bundle):
    model = find_family("toy").from_tables({"mixer": {"width": 32}})
    drawn = model.parts["painter"].random_weights(1)
    stored = load_file(bundle / "weights" / "painter.safetensors")
    assert stored.keys() == drawn.keys()
    assert all(stored[name].equal(drawn[name].load()) for name in drawn)


def test_its_mixer_is_in_int8(bundle):
    engines = read_manifest(bundle).engines
    assert {name: e.precision for name, e in engines.items()} == {
        "advance": "int8",
        "paint": "fp32",
    }


def test_it_is_validated(cli, bundle):
    found = cli.json("validate", bundle)
    assert found["passed"]
    assert {row["component"] for row in found["components"]} == {"advance", "paint"}
    assert not any(row["switched"] for row in found["rollout"])


@pytest.fixture(scope="module")
def golden_calls(cli, bundle):
    """Polygraphy's command for each component."""
    found = cli.json("validate", bundle, "--polygraphy", "calls")["polygraphy"]
    return {name: shlex.split(command) for name, command in found.items()}


@pytest.mark.parametrize("name", ["advance", "paint"])
def test_polygraphy_compares_its_graphs_with_pytorch(golden_calls, tmp_path, name):
    done = polygraphy_tool.run(golden_calls[name], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_polygraphy_fails_for_a_graph_with_a_planted_fault(golden_calls, tmp_path):
    command = golden_calls["paint"]
    model = onnx.load(command[2])
    (node,) = (node for node in model.graph.node if node.op_type == "Tanh")
    node.op_type = "Sigmoid"
    onnx.save(model, tmp_path / "paint.onnx")
    done = polygraphy_tool.run([*command[:2], "paint.onnx", *command[3:]], tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED" in done.stdout


def test_polygraphy_builds_a_graph_with_tensorrt_rtx(bundle, tmp_path):
    pytest.importorskip("tensorrt_rtx")
    command = ("polygraphy", "convert", str(bundle / "paint.onnx"), "--convert-to", "trt", "-o",
               "paint.plan")  # fmt: skip
    done = polygraphy_tool.run(command, tmp_path, POLYGRAPHY_USE_TENSORRT_RTX="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert describe_plan(tmp_path / "paint.plan").product == "tensorrt_rtx"


def test_data_for_polygraphy_lie_outside_the_bundle(bundle, vidc):
    status, out, err = vidc("validate", str(bundle), "--polygraphy", str(bundle / "calls"))
    assert (status, out) == (2, "")
    assert "VIDC-VALIDATE-POLYGRAPHY" in err
    assert "a bundle stays as it was published" in err


def test_only_graphs_for_a_cpu_have_data_for_polygraphy(bundle):
    manifest = read_manifest(bundle)
    compiled = replace(manifest.engines["paint"], backend="aoti", loader="aoti")
    engines = {**manifest.engines, "paint": compiled}
    with pytest.raises(UsageError, match="paint is an engine of aoti") as caught:
        require_graphs(replace(manifest, engines=engines))
    assert caught.value.code == "VIDC-VALIDATE-POLYGRAPHY"


@pytest.mark.parametrize("name", ["advance", "paint"])
def test_a_fault_in_a_component_fails_its_gate(bundle, name):
    golden = Golden.load(bundle)
    with load(bundle) as loaded:
        engines = {**loaded.engines, name: Scaled(loaded.engines[name])}
        player = Player(Clip, loaded.resources).with_engines(engines)
        gates = compare_with_golden(golden, player, {"advance": "int8"}).gates
    assert name in {gate.component for gate in gates if not gate.passed}


class Scaled:
    """An engine whose outputs are half as large again."""

    def __init__(self, engine):
        self.signature, self._engine = engine.signature, engine

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        for output in buffers.outputs.values():
            output.mul_(1.5)


def test_it_is_measured(cli, bundle):
    found = cli.json("bench", bundle, "--samples", 6, "--warmup", 1, "--cold-starts", 1)
    assert {"block_ms", "paint_ms", "stream_ms", "cold_start_s"} <= found["metrics"].keys()
    assert not {name for name in found["metrics"] if name.startswith(("switch", "vae"))}
    page = Path(found["report"]).read_text()
    assert "painting decode of a block" in page
    assert "prompt" not in page


def test_a_sweep_builds_and_measures_variants(cli):
    cli.json("build", *SOURCE, "-o", "exact")
    quick = ("--samples", 6, "--warmup", 1, "--cold-starts", 0)
    found = cli.json("bench", "exact", *quick, "--against", "eager", "--sweep", "precision=fp32")
    assert "paint_ms" in found["baselines"]["eager"]
    (row,) = found["sweep"]["rows"]
    assert row["change"]["relative_l2"] == 0


def test_its_frames_are_written(cli, bundle):
    found = cli.json("run", bundle, "--blocks", 3, "--seed", 5, "-o", "out.gif")
    assert found["frames"] == 3
    with Image.open(cli.folder / "out.gif") as image:
        assert (image.size, image.n_frames) == ((16, 16), 3)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("run", "bundle", "--prompt", "a fox"), "VIDC-PROMPT-UNUSED"),
        (("run", "bundle", "--switch", "2:a fox"), "VIDC-PROMPT-UNUSED"),
        (("calibrate", *SOURCE, "--prompts", "p.txt"), "VIDC-CALIBRATE-PROMPTS"),
        (("build", *SOURCE, "--vae", "v.pt"), "VIDC-BUILD-SOURCES"),
        (("build", *SOURCE, "--text-encoder", "t"), "VIDC-BUILD-SOURCES"),
    ],
)  # fmt: skip
def test_refuses_prompts_and_parts_of_other_families(bundle, vidc, monkeypatch, arguments, code):
    monkeypatch.chdir(bundle.parent)
    status, out, err = vidc(*arguments)
    assert (status, out) == (2, "")
    assert code in err
