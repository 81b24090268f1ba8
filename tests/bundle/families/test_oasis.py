"""A bundle of an Oasis world through the command line: build, validate, calibrate, bench, run."""

import json
import os
from pathlib import Path

import av
import numpy as np
import oasis_models
import pytest
import torch
from oasis_models import actions_of, images_of
from PIL import Image
from safetensors import safe_open

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.presets import load_preset
from vidc.compiler.config.resolve import resolve
from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.play import Player
from vidc.runtime import load
from vidc.runtime.engines import Wrapper
from vidc.runtime.programs.ring_world import RingWorld

PRESET = """
description = "The smallest world with rings"
extends = "oasis-tiny"
[model]
layers = 2
actions = 5
analog = [3]
[vae]
decoder_layers = 1
[stream]
height = 48
width = 64
window = 4
[sampler]
steps = 2
"""
COMPONENTS = {"vae_encode", "condition_frame", "denoise", "kv_update", "vae_decode"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("oasis")
    (path / "small.toml").write_text(PRESET)
    return path


@pytest.fixture(scope="module")
def made(folder):
    """A model of this preset and the oracle with the weights of its checkpoints."""
    model = load_preset(str(folder / "small.toml")).model
    return oasis_models.pair(**model.to_json())


@pytest.fixture(scope="module")
def source(folder, made):
    oasis, vae = made.save(folder)
    return (str(folder / "small.toml"), "--gpu", "cpu", "--checkpoint", oasis, "--vae", vae)


@pytest.fixture(scope="module")
def bundle(folder, source):
    settings = resolve(source[0], gpu="cpu", environ={})
    _, sources = SourceOptions(source[4], {"vae": source[6]}).resolve(settings.model)
    whole(settings, sources).run(folder / "bundle", Path(os.environ["VIDC_CACHE"]), LineProgress())
    return folder / "bundle"


class Scaled(Wrapper):
    """Engine whose results are two percent too large."""

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        written = [states[s.name] for s in self.signature.states if s.writes]
        for tensor in (*buffers.outputs.values(), *written):
            tensor.mul_(1.02)


def as_json(vidc, *arguments):
    status, out, err = vidc(*map(str, arguments), "--json")
    assert status == 0, err
    return json.loads(out)


def test_it_is_validated(vidc, bundle):
    found = as_json(vidc, "validate", bundle)
    assert found["passed"]
    assert {row["component"] for row in found["components"]} == COMPONENTS
    assert all(row["relative_l2"] < 1e-4 for row in found["components"])


@pytest.mark.parametrize("name", sorted(COMPONENTS))
def test_a_fault_in_a_component_fails_its_gate(bundle, name):
    golden = Golden.load(bundle)
    with load(bundle) as loaded:
        engines = {**loaded.engines, name: Scaled(loaded.engines[name])}
        player = Player(RingWorld, loaded.resources).with_engines(engines)
        gates = compare_with_golden(golden, player, {}).gates
    assert name in {gate.component for gate in gates if not gate.passed}


def test_engines_equal_the_oracle_in_closed_loop(bundle, made):
    images, world = images_of(made.model, 1), made.world()
    image = images.permute(0, 3, 1, 2).float() / 127.5 - 1
    world.remember(made.vae.encode(image)[0], torch.zeros(5))
    with load(bundle) as loaded, loaded.session() as session:
        session.start(images)
        noise = torch.Generator().manual_seed(1)
        for action in actions_of(made.model, 6):
            drawn = torch.randn(session.spec.noise_shape, generator=noise)
            session.act(action)
            picture = session.step(drawn)[0]
            expected = world.cached(drawn.reshape(session.spec.latent), action)
            world.remember(expected, action)
            exact = made.vae.decode(expected[None])[0].add(1).mul(127.5).clamp(0, 255)
            assert (picture.permute(2, 0, 1) - exact).abs().max() < 1


def test_interleaved_sessions_equal_single_ones(bundle, made):
    actions = actions_of(made.model, 6)

    def step(session, index):
        session.act(actions[index])
        return session.step()

    with load(bundle) as loaded:
        alone = {}
        for seed in (1, 2):
            with loaded.session(seed=seed) as session:
                alone[seed] = [step(session, index) for index in range(6)]
        one, two = loaded.session(seed=1), loaded.session(seed=2)
        for index in range(6):
            assert step(one, index).equal(alone[1][index])
            assert step(two, index).equal(alone[2][index])


def test_recorded_actions_make_a_video(vidc, bundle, made, tmp_path):
    actions = actions_of(made.model, 5)
    np.savetxt(tmp_path / "a.csv", actions.numpy(), delimiter=",")
    np.save(tmp_path / "a.npy", actions.numpy())
    Image.fromarray(images_of(made.model, 1)[0].numpy()).save(tmp_path / "start.png")
    start = tmp_path / "start"
    start.mkdir()
    frames = images_of(made.model, 2).permute(0, 3, 1, 2)
    np.save(start / "low_res.npy", frames.numpy())
    np.save(start / "act.npy", actions[:2].numpy())
    videos = []
    for name, begin in (("a.csv", "start.png"), ("a.npy", "start.png"), ("a.npy", "start")):
        # Of the same frames, x264 makes another file now and then; a GIF is always the same.
        output = tmp_path / f"{len(videos)}.gif"
        options = ("--actions", tmp_path / name, "--start", tmp_path / begin, "-o", output)
        assert as_json(vidc, "run", bundle, *options)["frames"] == 5
        with av.open(str(output)) as video:
            videos.append([f.to_ndarray(format="rgb24") for f in video.decode(video=0)])
    assert videos[0][0].shape == (48, 64, 3)
    assert all(np.array_equal(*pair) for pair in zip(videos[0], videos[1], strict=True))
    assert not np.array_equal(videos[0][0], videos[2][0])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("1,0,0,0\n", "VIDC-SESSION-ACTIONS"),
        ("1,0,0,0.5,0\n0,0,2,0,0\n", "VIDC-SESSION-ACTIONS"),
        ("1,0,0,1.5,0\n", "VIDC-SESSION-ACTIONS"),
        ("1,0,nan,0,0\n", "VIDC-SESSION-FINITE"),
    ],
)
def test_refuses_recorded_actions(vidc, bundle, tmp_path, content, code):
    (tmp_path / "a.csv").write_text(content)
    options = ("--actions", str(tmp_path / "a.csv"), "-o", str(tmp_path / "o.gif"))
    status, out, err = vidc("run", str(bundle), *options)
    assert (status, out, code in err) == (2, "", True)
    assert not (tmp_path / "o.gif").exists()


def test_its_bench_and_contents_are_its_own(vidc, bundle):
    quick = ("--samples", 2, "--warmup", 1, "--cold-starts", 0, "--against", "eager")
    metrics = as_json(vidc, "bench", bundle, *quick)["metrics"]
    assert {"block_ms", "vae_ms", "stream_ms"} <= metrics.keys()
    assert not any(name.startswith("switch") for name in metrics)
    engines = as_json(vidc, "inspect", bundle)["engines"]
    assert {engine["component"] for engine in engines} == COMPONENTS


def test_a_part_without_its_checkpoint_is_refused(vidc, source, folder):
    status, _, err = vidc("build", *map(str, source[:5]), "-o", str(folder / "no"))
    assert (status, "VIDC-BUILD-SOURCES" in err, "--vae" in err) == (2, True, True)


def test_linears_are_quantized_on_recorded_ranges(vidc, folder, made):
    # A checkpoint's weights count as trained, and nobody trained the oracle's.
    source = (folder / "small.toml", "--gpu", "cpu", "--random-weights", 1)
    as_json(vidc, "calibrate", *source, "-n", 2, "-o", folder / "ranges")
    quantized = ("--precision", "int8", "--calibration", folder / "ranges")
    as_json(vidc, "build", *source, *quantized, "-o", folder / "int8")
    assert as_json(vidc, "validate", folder / "int8")["passed"]
    with safe_open(folder / "int8/weights/oasis.safetensors", "pt") as weights:
        kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    narrow = {name.removesuffix(".weight") for name, kind in kinds.items() if kind == "I8"}
    layers = ("to_qkv", "to_out", "fc1", "fc2")
    assert {name.rsplit(".", 1)[1] for name in narrow} == {*layers}
    assert len(narrow) == made.model.transformer.layers * 2 * len(layers)


@pytest.mark.deep
def test_aotinductor_builds_and_validates_it(vidc, source, folder):
    as_json(vidc, "build", *source, "--backend", "aoti", "-o", folder / "aoti")
    assert as_json(vidc, "validate", folder / "aoti")["passed"]
