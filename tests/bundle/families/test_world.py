"""A bundle of a world model through the command line: build, validate, calibrate, bench and run."""

import json
import os
from pathlib import Path

import av
import diamond_models
import numpy as np
import pytest
import torch
from diamond_models import actions_of, start_of
from safetensors import safe_open

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.calibrated_tensors import convolution_sizes
from vidc.compiler.validate.compare import compare_with_golden
from vidc.compiler.validate.golden import Golden
from vidc.compiler.validate.play import Player
from vidc.runtime import load
from vidc.runtime.engines import Wrapper
from vidc.runtime.programs.world import World

PRESET = """
description = "The smallest world with both networks"
extends = "world-tiny"
[denoiser]
channels = [32, 32]
cond = 32
actions = 5
[upsampler]
cond = 16
factor = 3
[frames]
height = 10
width = 14
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("world")
    (path / "small.toml").write_text(PRESET)
    return path


@pytest.fixture(scope="module")
def model(folder):
    from vidc.compiler.config.presets import load_preset

    return load_preset(str(folder / "small.toml")).model


@pytest.fixture(scope="module")
def checkpoint(folder, model):
    """`csgo.pt` of a model of this preset."""
    tables = {name: getattr(model, name).to_json() for name in model.tables}
    return diamond_models.pair(**tables).save(folder)


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
    """Engine whose outputs are a hundredth too large."""

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        for output in buffers.outputs.values():
            output.mul_(1.01)


def as_json(vidc, *arguments):
    status, out, err = vidc(*map(str, arguments), "--json")
    assert status == 0, err
    return json.loads(out)


def test_it_is_validated(vidc, bundle):
    found = as_json(vidc, "validate", bundle)
    assert found["passed"]
    assert {row["component"] for row in found["components"]} == {"denoise", "upsample"}
    assert all(row["relative_l2"] < 1e-4 for row in found["components"])
    assert all(row["psnr_db"] is None or row["psnr_db"] > 40 for row in found["rollout"])


@pytest.mark.parametrize("name", ["denoise", "upsample"])
def test_a_fault_in_a_component_fails_its_gate(bundle, name):
    golden = Golden.load(bundle)
    with load(bundle) as loaded:
        engines = {**loaded.engines, name: Scaled(loaded.engines[name])}
        player = Player(World, loaded.resources).with_engines(engines)
        gates = compare_with_golden(golden, player, {}).gates
    failed = {gate.component for gate in gates if not gate.passed}
    assert failed & {"denoise", "upsample"} == {name}


def test_engines_equal_the_oracle_in_open_loop(bundle, model):
    tables = {name: getattr(model, name).to_json() for name in model.tables}
    made = diamond_models.pair(**tables)
    session_frames, start = [], start_of(model)
    noise = torch.Generator().manual_seed(1)
    with load(bundle) as loaded, loaded.session() as session:
        for action in actions_of(model, 5):
            values = torch.randn(session.spec.noise_shape, generator=noise)
            pieces = list(values[0].split([draw.size for draw in session.spec.draws]))
            world = made.world(start, lambda shape, left=pieces: left.pop(0).reshape(shape))
            session.spawn(*start)
            session.act(action)
            frame = session.step(values)
            expected = ((world.step(action) + 1) * 127.5).round()[0].permute(1, 2, 0)
            session_frames.append((frame[0].float() - expected).abs())
    apart = torch.stack(session_frames)
    assert apart.max() <= 1
    assert (apart > 0).float().mean() < 1e-3


def test_interleaved_sessions_equal_single_ones(bundle, model):
    actions = actions_of(model, 4)

    def step(session, index):
        session.act(actions[index])
        return session.step()

    with load(bundle) as loaded:
        alone = {}
        for seed in (1, 2):
            with loaded.session(seed=seed) as session:
                alone[seed] = [step(session, index) for index in range(4)]
        one, two = loaded.session(seed=1), loaded.session(seed=2)
        for index in range(4):
            assert step(one, index).equal(alone[1][index])
            assert step(two, index).equal(alone[2][index])


def write_start(path, model):
    """Writes a state as DIAMOND's `spawn` folders hold one; the upsampler's frames are more."""
    path.mkdir()
    low, full, actions = start_of(model)
    for name, frames in (("low_res", low), ("full_res", full.repeat(4, 1, 1, 1))):
        np.save(path / f"{name}.npy", ((frames + 1) * 127.5).round().to(torch.uint8).numpy())
    np.save(path / "act.npy", actions.to(torch.int8).numpy())
    return path


def test_recorded_actions_make_a_video(vidc, bundle, model, tmp_path):
    actions = actions_of(model, 6)
    np.savetxt(tmp_path / "a.csv", actions.numpy(), fmt="%d", delimiter=",")
    np.save(tmp_path / "a.npy", actions.to(torch.uint8).numpy())
    start = write_start(tmp_path / "spawn", model)
    videos = []
    for name, more in (("a.csv", ()), ("a.npy", ("--frames", 4)), ("a.npy", ("--seed", 3))):
        output = tmp_path / f"{len(videos)}.mp4"
        options = ("--actions", tmp_path / name, "--start", start, *more, "-o", output)
        found = as_json(vidc, "run", bundle, *options)
        with av.open(str(output)) as video:
            videos.append([f.to_ndarray(format="rgb24") for f in video.decode(video=0)])
        assert found["frames"] == len(videos[-1])
    assert [*map(len, videos)] == [6, 4, 6]
    assert videos[0][0].shape == (30, 42, 3)
    assert np.array_equal(videos[0][0], videos[1][0])
    assert not np.array_equal(videos[0][0], videos[2][0])


def test_an_image_is_a_start(vidc, bundle, tmp_path):
    from PIL import Image

    Image.new("RGB", (42, 30), (200, 10, 10)).save(tmp_path / "red.png")
    options = ("--frames", 2, "--start", tmp_path / "red.png", "-o", tmp_path / "o.gif")
    assert as_json(vidc, "run", bundle, *options)["frames"] == 2
    Image.new("RGB", (40, 30)).save(tmp_path / "small.png")
    options = ("--start", str(tmp_path / "small.png"), "-o", str(tmp_path / "p.gif"))
    status, _, err = vidc("run", str(bundle), *options)
    assert (status, "VIDC-SESSION-START" in err) == (2, True)
    assert not (tmp_path / "p.gif").exists()


@pytest.mark.parametrize(
    ("content", "options", "code"),
    [
        ("1,0,0,0\n", (), "VIDC-SESSION-ACTIONS"),
        ("1,0,0,0,0\n0,0,2,0,0\n", (), "VIDC-SESSION-ACTIONS"),
        ("1,0,nan,0,0\n", (), "VIDC-SESSION-FINITE"),
        ("1,0,jump,0,0\n", (), "VIDC-RUN-CONTROLS"),
        ("", (), "VIDC-RUN-CONTROLS"),
        ("1,0,0,0,0\n", ("--frames", 2), "VIDC-RUN-LENGTH"),
        ("1,0,0,0,0\n", ("--frames", 1, "--blocks", 1), "VIDC-RUN-LENGTH"),
        ("1,0,0,0,0\n", ("--prompt", "a fox"), "VIDC-PROMPT-UNUSED"),
        ("1,0,0,0,0\n", ("--start", "."), "VIDC-RUN-CONTROLS"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:loadtxt. input contained no data")
def test_refuses_actions_and_options(vidc, bundle, tmp_path, monkeypatch, content, options, code):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(content)
    status, out, err = vidc(
        "run", str(bundle), "--actions", "a.csv", *map(str, options), "-o", "o.gif"
    )
    assert (status, out, code in err) == (2, "", True)
    assert not (tmp_path / "o.gif").exists()


def test_its_bench_and_contents_are_its_own(vidc, bundle):
    quick = ("--samples", 3, "--warmup", 1, "--cold-starts", 0)
    metrics = as_json(vidc, "bench", bundle, *quick)["metrics"]
    assert {"block_ms", "pixels_ms", "stream_ms"} <= metrics.keys()
    assert not any(name.startswith("switch") for name in metrics)
    engines = as_json(vidc, "inspect", bundle)["engines"]
    assert {engine["component"] for engine in engines} == {"denoise", "upsample"}


def test_convolutions_are_quantized_on_recorded_ranges(vidc, folder, model):
    # A checkpoint's weights count as trained, and nobody trained the oracle's.
    source = (folder / "small.toml", "--gpu", "cpu", "--random-weights", 1)
    as_json(vidc, "calibrate", *source, "-n", 2, "-o", folder / "ranges")
    quantized = ("--precision", "int8", "--calibration", folder / "ranges")
    as_json(vidc, "build", *source, *quantized, "-o", folder / "int8")
    assert as_json(vidc, "validate", folder / "int8")["passed"]
    with safe_open(folder / "int8/weights/diamond.safetensors", "pt") as weights:
        kinds = {name: weights.get_slice(name).get_dtype() for name in weights.keys()}  # noqa: SIM118
    narrow = {name.removesuffix(".weight") for name, kind in kinds.items() if kind == "I8"}
    inside = [n for n in convolution_sizes(model) if "conv_in" not in n and "conv_out" not in n]
    assert narrow == set(inside)


def test_analysis_refuses_a_recipe_with_convolutions(vidc, source):
    status, _, err = vidc("calibrate", *map(str, source), "--analyze", "-n", "1")
    assert (status, "VIDC-SENSITIVITY-GROUPS" in err) == (2, True), err


@pytest.mark.deep
def test_aotinductor_builds_and_validates_it(vidc, source, folder):
    as_json(vidc, "build", *source, "--backend", "aoti", "-o", folder / "aoti")
    assert as_json(vidc, "validate", folder / "aoti")["passed"]
