"""Bundles of all families of worlds through the command line: build, validate, bench and run."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from world_cases import CASES

from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.play import Player
from vidc.runtime import load
from vidc.runtime.engines import Wrapper
from vidc.runtime.video import open_writer

COMPONENTS = [(name, component) for name, case in CASES.items() for component in case.components]


class Scaled(Wrapper):
    """Engine whose outputs and written states are two percent too large."""

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        written = [states[state.name] for state in self.signature.states if state.writes]
        for tensor in (*buffers.outputs.values(), *written):
            tensor.mul_(1.02)


@pytest.fixture(params=CASES)
def world(request, worlds):
    return worlds(request.param)


def as_json(vidc, *arguments):
    status, out, err = vidc(*map(str, arguments), "--json")
    assert status == 0, err
    return json.loads(out)


def test_it_is_validated(vidc, world):
    found = as_json(vidc, "validate", world.bundle)
    assert found["passed"]
    assert {row["component"] for row in found["components"]} == {*world.case.components}
    assert all(row["relative_l2"] < 1e-4 for row in found["components"])
    assert all(row["psnr_db"] is None or row["psnr_db"] > 40 for row in found["rollout"])


@pytest.mark.parametrize(("name", "component"), COMPONENTS)
def test_a_fault_in_a_component_fails_its_gate(worlds, name, component):
    bundle = worlds(name).bundle
    golden = Golden.load(bundle)
    with load(bundle) as loaded:
        engines = {**loaded.engines, component: Scaled(loaded.engines[component])}
        with loaded.session() as session:
            player = Player(type(session), loaded.resources).with_engines(engines)
        gates = compare_with_golden(golden, player, {}).gates
        # A state that it writes is an input of other components.
        writes = any(state.writes for state in engines[component].signature.states)
    failed = {gate.component for gate in gates if not gate.passed and gate.where == "component"}
    assert component in failed
    assert writes or failed == {component}


def test_interleaved_sessions_equal_single_ones(world):
    actions = world.case.actions(world.model, 6)

    def step(session, index):
        session.act(actions[index])
        return session.step()

    with load(world.bundle) as loaded:
        alone = {}
        for seed in (1, 2):
            with loaded.session(seed=seed) as session:
                alone[seed] = [step(session, index) for index in range(6)]
        one, two = loaded.session(seed=1), loaded.session(seed=2)
        for index in range(6):
            assert step(one, index).equal(alone[1][index])
            assert step(two, index).equal(alone[2][index])


def test_recorded_actions_make_a_video(vidc, world, tmp_path):
    # Of the same frames, x264 makes another file now and then; a GIF is always the same.
    actions = world.case.actions(world.model, 6)
    np.savetxt(tmp_path / "a.csv", actions.numpy(), delimiter=",")
    np.save(tmp_path / "a.npy", actions.numpy())
    start = tmp_path / "start"
    start.mkdir()
    world.case.write_start(world.model, start)

    def run(name, frames, *options):
        output = tmp_path / "video.gif"
        arguments = ("--actions", tmp_path / name, "-o", output, "--fps", 10, *options)
        found = as_json(vidc, "run", world.bundle, *arguments)
        assert found["frames"] == frames
        return output.read_bytes()

    def expected(seed):
        with (
            load(world.bundle) as loaded,
            loaded.session(seed=seed) as session,
            open_writer(tmp_path / "expected.gif", 10) as writer,
        ):
            for action in actions:
                session.act(action)
                writer.write(session.step())
        return (tmp_path / "expected.gif").read_bytes()

    made = run("a.csv", 6, "--seed", 3)
    assert made == run("a.npy", 6, "--seed", 3) == expected(3)
    assert made != run("a.npy", 6, "--seed", 4)
    started = run("a.npy", 6, "--seed", 3, "--start", start)
    assert started != made
    assert started != run("a.npy", 4, "--seed", 3, "--start", start, "--frames", 4)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("1,0,0,0\n", "VIDC-SESSION-ACTIONS"),
        ("1,0,0,0,0\n{refused}\n", "VIDC-SESSION-ACTIONS"),
        ("1,0,nan,0,0\n", "VIDC-SESSION-FINITE"),
    ],
)
def test_refuses_recorded_actions(vidc, world, tmp_path, content, code):
    (tmp_path / "a.csv").write_text(content.format(refused=world.case.refused_action))
    options = ("--actions", str(tmp_path / "a.csv"), "-o", str(tmp_path / "o.gif"))
    status, out, err = vidc("run", str(world.bundle), *options)
    assert (status, out, code in err) == (2, "", True), err
    assert not (tmp_path / "o.gif").exists()


def test_its_bench_and_contents_are_its_own(vidc, world):
    quick = ("--samples", 2, "--warmup", 1, "--cold-starts", 0, "--against", "eager")
    metrics = as_json(vidc, "bench", world.bundle, *quick)["metrics"]
    assert world.case.metrics <= metrics.keys()
    assert not any(name.startswith("switch") for name in metrics)
    engines = as_json(vidc, "inspect", world.bundle)["engines"]
    assert {engine["component"] for engine in engines} == {*world.case.components}


@pytest.mark.parametrize(
    "name", ["world", pytest.param("latent_world", marks=pytest.mark.deep), "oasis"]
)
def test_layers_are_quantized_on_recorded_ranges(vidc, worlds, tmp_path, name):
    world = worlds(name)
    # A checkpoint's weights count as trained, and nobody trained the oracle's.
    source = (world.preset, "--gpu", "cpu", "--random-weights", 1)
    as_json(vidc, "calibrate", *source, "-n", 2, "-o", tmp_path / "ranges")
    quantized = ("--precision", "int8", "--calibration", tmp_path / "ranges")
    as_json(vidc, "build", *source, *quantized, "-o", tmp_path / "int8")
    assert as_json(vidc, "validate", tmp_path / "int8")["passed"]
    with safe_open(tmp_path / f"int8/weights/{world.case.weights}.safetensors", "pt") as weights:
        kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    layers = {name.removesuffix(".weight") for name in kinds if name.endswith(".weight")}
    narrow = {name.removesuffix(".weight") for name, kind in kinds.items() if kind == "I8"}
    assert narrow
    assert narrow == world.case.narrow(world.model, layers)


@pytest.mark.deep
def test_aotinductor_builds_and_validates_it(vidc, world, tmp_path):
    as_json(vidc, "build", *world.source, "--backend", "aoti", "-o", tmp_path / "aoti")
    assert as_json(vidc, "validate", tmp_path / "aoti")["passed"]
