"""A bundle of a world in latents through the command line: build, validate, bench and run."""

import json
import os
from dataclasses import replace
from pathlib import Path

import av
import numpy as np
import pytest
from gamengen_models import Pair, actions_of, drawn, start_of

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.resolve import resolve
from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.metrics import compare
from vidc.compiler.validate.play import Player
from vidc.runtime import load
from vidc.runtime.engines import Wrapper
from vidc.runtime.manifest import read_manifest
from vidc.runtime.programs.latent_world import LatentWorld

PRESET = """
description = "The smallest world in latents"
extends = "latent-world-tiny"
[vae]
channels = [32, 32, 32, 32]
[sampler]
steps = 2
[frames]
height = 56
width = 80
[validate]
blocks = 4
switch_after = 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("latent-world")
    (path / "small.toml").write_text(PRESET)
    return path


@pytest.fixture(scope="module")
def made(folder):
    from vidc.compiler.config.presets import load_preset

    return Pair(load_preset(str(folder / "small.toml")).model)


@pytest.fixture(scope="module")
def checkpoint(folder, made):
    """A download of a model of this preset."""
    return made.save(folder / "download")


@pytest.fixture(scope="module")
def source(folder, checkpoint):
    return (str(folder / "small.toml"), "--gpu", "cpu", "--checkpoint", str(checkpoint))


@pytest.fixture(scope="module")
def bundle(folder, checkpoint):
    settings = resolve(str(folder / "small.toml"), gpu="cpu", environ={})
    _, sources = SourceOptions(checkpoint).resolve(settings.model)
    # The cache of the command line, for the tests that build.
    whole(settings, sources).run(folder / "bundle", Path(os.environ["VIDC_CACHE"]), LineProgress())
    return folder / "bundle"


class Scaled(Wrapper):
    """Engine whose outputs and written states are a hundredth too large."""

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        for output in buffers.outputs.values():
            output.mul_(1.01)
        for state in self.signature.states:
            if state.writes:
                states[state.name].mul_(1.01)


def as_json(vidc, *arguments):
    status, out, err = vidc(*map(str, arguments), "--json")
    assert status == 0, err
    return json.loads(out)


def test_it_is_validated(vidc, bundle):
    found = as_json(vidc, "validate", bundle)
    assert found["passed"]
    names = {"vae_encode", "condition_frame", "denoise", "vae_decode"}
    assert {row["component"] for row in found["components"]} == names
    assert all(row["relative_l2"] < 1e-4 for row in found["components"])


@pytest.mark.parametrize("name", ["vae_encode", "condition_frame", "denoise", "vae_decode"])
def test_a_fault_in_a_component_fails_its_gate(bundle, name):
    golden = Golden.load(bundle)
    with load(bundle) as loaded:
        engines = {**loaded.engines, name: Scaled(loaded.engines[name])}
        player = Player(LatentWorld, loaded.resources).with_engines(engines)
        gates = compare_with_golden(golden, player, {}).gates
    assert name in {gate.component for gate in gates if not gate.passed}


def test_engines_equal_diffusers_in_open_loop(bundle, made):
    world = made.world(start_of(made.model))
    with load(bundle) as loaded, loaded.session() as session:
        for index, action in enumerate(actions_of(made.model, 5)):
            session.spawn(world.past, actions=world.actions)
            session.act(action)
            noise = drawn(*session.spec.noise_shape, seed=index)
            expected = world.latent(action, [noise.view(session.spec.latent_shape)])
            assert compare(session.generate(noise), expected).relative_l2 < 1e-5
            shown = world.decode(expected).add(1).mul(127.5).round().clamp(0, 255)
            apart = session.decode(expected).permute(0, 3, 1, 2).int() - shown.int()
            assert apart.abs().max() <= 1


def test_interleaved_sessions_equal_single_ones(bundle, made):
    actions = actions_of(made.model, 3)

    def step(session, index):
        session.act(actions[index])
        return session.step()

    with load(bundle) as loaded:
        alone = {}
        for seed in (1, 2):
            with loaded.session(seed=seed) as session:
                alone[seed] = [step(session, index) for index in range(3)]
        one, two = loaded.session(seed=1), loaded.session(seed=2)
        for index in range(3):
            assert step(one, index).equal(alone[1][index])
            assert step(two, index).equal(alone[2][index])


def test_recorded_actions_make_a_video(vidc, bundle, made, tmp_path):
    actions = actions_of(made.model, 4)
    np.save(tmp_path / "a.npy", np.array(actions))
    rows = np.eye(made.model.unet.actions)[actions]
    np.savetxt(tmp_path / "a.csv", rows, fmt="%d", delimiter=",")
    start = tmp_path / "start"
    start.mkdir()
    frames = np.random.default_rng(0).integers(0, 256, (3, 3, 56, 80), dtype=np.uint8)
    np.save(start / "low_res.npy", frames)
    np.save(start / "act.npy", np.array([1, 0, 4]))
    videos = []
    short = ("--frames", 3)
    for name, more in (("a.csv", ()), ("a.npy", ()), ("a.npy", ("--seed", 3)), ("a.npy", short)):
        output = tmp_path / f"{len(videos)}.mp4"
        options = ("--actions", tmp_path / name, "--start", start, *more, "-o", output)
        found = as_json(vidc, "run", bundle, *options)
        with av.open(str(output)) as video:
            videos.append([f.to_ndarray(format="rgb24") for f in video.decode(video=0)])
        assert found["frames"] == len(videos[-1])
    assert [*map(len, videos)] == [4, 4, 4, 3]
    assert videos[0][0].shape == (56, 80, 3)
    assert np.array_equal(videos[0][0], videos[1][0])
    assert not np.array_equal(videos[0][0], videos[2][0])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("1,0,0,0\n", "VIDC-SESSION-ACTIONS"),
        ("1,1,0,0,0\n", "VIDC-SESSION-ACTIONS"),
        ("nan,0,0,0,0\n", "VIDC-SESSION-FINITE"),
    ],
)
def test_refuses_actions(vidc, bundle, tmp_path, content, code):
    (tmp_path / "a.csv").write_text(content)
    options = ("--actions", str(tmp_path / "a.csv"), "-o", str(tmp_path / "o.gif"))
    status, out, err = vidc("run", str(bundle), *options)
    assert (status, out, code in err) == (2, "", True), err
    assert not (tmp_path / "o.gif").exists()


def test_its_bench_and_contents_are_its_own(vidc, bundle):
    quick = ("--samples", 3, "--warmup", 1, "--cold-starts", 0)
    metrics = as_json(vidc, "bench", bundle, *quick)["metrics"]
    assert {"block_ms", "vae_ms", "first_frames_ms", "stream_ms"} <= metrics.keys()
    engines = as_json(vidc, "inspect", bundle)["engines"]
    assert {engine["component"] for engine in engines} == {*read_manifest(bundle).engines}


def test_a_spec_of_another_size_is_refused(bundle):
    manifest = read_manifest(bundle)
    signatures = {name: engine.signature for name, engine in manifest.engines.items()}
    manifest.spec.check(signatures)
    for changed in ({"past": 4}, {"video": (56, 64)}, {"guidance": 1.5}, {"past_noise": 0.1}):
        with pytest.raises(ValueError, match="has tensors"):
            replace(manifest.spec, **changed).check(signatures)


@pytest.mark.deep
def test_its_layers_are_quantized_on_recorded_ranges(vidc, folder):
    # A checkpoint's weights count as trained, and nobody trained these.
    source = (folder / "small.toml", "--gpu", "cpu", "--random-weights", 1)
    as_json(vidc, "calibrate", *source, "-n", 2, "-o", folder / "ranges")
    quantized = ("--precision", "int8", "--calibration", folder / "ranges")
    as_json(vidc, "build", *source, *quantized, "-o", folder / "int8")
    assert as_json(vidc, "validate", folder / "int8")["passed"]


@pytest.mark.deep
def test_aotinductor_builds_and_validates_it(vidc, source, folder):
    as_json(vidc, "build", *source, "--backend", "aoti", "-o", folder / "aoti")
    assert as_json(vidc, "validate", folder / "aoti")["passed"]
