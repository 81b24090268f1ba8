"""Calls that a measurement makes, and those that it counts; their times are scripted."""

from collections import Counter
from itertools import groupby
from typing import ClassVar

import pytest
import torch

from vidc.compiler.bench import measure as module
from vidc.compiler.bench.measure import RUN, Protocol, measure
from vidc.compiler.bench.streams import Contestant
from vidc.plugins.errors import GateError

CPU = torch.device("cpu")


class Time:
    """A clock that only work moves on."""

    now = 0.0

    def __init__(self, device):
        assert device == CPU

    def time(self, work):
        start = Time.now
        return work(), Time.now - start

    def mark(self):
        return Time.now

    def reach(self, mark):
        assert mark <= Time.now

    def between(self, first, second):
        return second - first

    def wait(self):
        pass


class Scripted:
    """A stream whose calls take a known time, written down in a log."""

    alive: ClassVar = Counter()

    def __init__(self, name, log, speed=1.0, value=0.0):
        Scripted.alive[name] += 1
        assert Scripted.alive[name] == 1, "two streams of one lane at a time"
        self.name, self.log, self.speed, self.value = name, log, speed, value
        self.prompts = []

    def __del__(self):
        Scripted.alive[self.name] -= 1

    def _spend(self, call, milliseconds):
        Time.now += milliseconds / self.speed
        self.log.append((self.name, call))

    def prompt(self, prompt):
        self.prompts.append(prompt)
        self._spend("prompt", 1)

    def switch_prompt(self, prompt):
        assert not torch.equal(prompt, self.prompts[-1]), "a switch to the same prompt"
        self.prompts.append(prompt)
        self._spend("switch", 150)

    def step(self, noise=None):
        self._spend("step" if noise is None else "fill", 400)

    def generate(self, noise):
        assert noise.shape == (2, 1, 3, 16, 4, 6)
        self._spend("generate", 270)
        return torch.full((1, 3, 16, 4, 6), self.value)

    def decode(self, latent):
        self._spend("decode", 150)

    def flush(self):
        self._spend("flush", 50)


@pytest.fixture
def run(monkeypatch, spec, decoding):
    monkeypatch.setattr(module, "Clock", Time)
    log = []

    def run(protocol, names=("vidc", "eager"), value=0.0):
        speeds = {"vidc": 1.0, "eager": 0.5}
        contestants = {
            name: Contestant(
                lambda name=name: Scripted(name, log, speeds[name], value), spec, decoding
            )
            for name in names
        }
        prompts = torch.stack([torch.zeros(1, 5, 8), torch.ones(1, 5, 8)])
        ticks = []
        found = measure(contestants, CPU, prompts, protocol, lambda: ticks.append(len(log)))
        assert not +Scripted.alive
        return found, log, ticks

    Scripted.alive.clear()
    return run


def test_every_figure_has_its_samples(run, spec):
    found, _, ticks = run(Protocol(warmup=2, samples=9))
    assert list(found) == ["vidc", "eager"]
    for name, speed in {"vidc": 1.0, "eager": 0.5}.items():
        expected = {
            "block_ms": 270, "latent_frame_ms": 90, "vae_ms": 150, "stream_ms": 400,
            "first_frames_ms": 400,
            "switch_ms": 150, "switch_block_ms": 420, "switch_extra_ms": 150,
        }  # fmt: skip
        for metric, milliseconds in expected.items():
            assert found[name][metric] == pytest.approx([milliseconds / speed] * 9), metric
        rates = {"block_latent_fps": 3 / 0.270, "block_video_fps": 12 / 0.270,
                 "vae_video_fps": 12 / 0.150, "stream_latent_fps": 3 / 0.4,
                 "stream_video_fps": 12 / 0.4}  # fmt: skip
        for metric, rate in rates.items():
            assert found[name][metric] == pytest.approx([rate * speed] * 9), metric
        assert set(found[name]) == expected.keys() | rates.keys()
    assert len(ticks) == Protocol(warmup=2, samples=9).rounds(spec)


def test_last_block_without_overlap_is_not_a_sample(run, monkeypatch):
    def drain(stream, noise=None):
        steps = sum(1 for name, call in stream.log if call == "step")
        last = noise is None and steps % RUN == RUN - 1
        stream._spend("step" if noise is None else "fill", 380 if last else 400)

    monkeypatch.setattr(Scripted, "step", drain)
    found, _, _ = run(Protocol(warmup=0, samples=20), names=("vidc",))
    assert found["vidc"]["stream_ms"] == pytest.approx([400] * 20)


def test_streams_take_turns_block_by_block(run):
    _, log, _ = run(Protocol(warmup=0, samples=3))
    parts = [(name, call) for name, call in log if call in ("generate", "decode")]
    turns = [name for name, _ in groupby(parts, key=lambda entry: entry[0])]
    assert turns[:6] == ["vidc", "eager"] * 3
    stretches = [(name, len([*calls])) for name, calls in groupby(n for n, c in log if c == "step")]
    assert stretches == [("vidc", RUN), ("eager", RUN)]


def test_the_window_is_full_before_anything_is_measured(run):
    _, log, _ = run(Protocol(warmup=0, samples=1), names=("vidc",))
    calls = [call for _, call in log]
    # Window 12 of blocks of 3, and one more, each time a stream is opened.
    assert calls[:6] == ["prompt"] + ["fill"] * 5
    assert Counter(calls)["prompt"] == 3
    assert Counter(calls)["fill"] == 15 + 1


def test_first_frames_are_those_of_an_idle_stream(run):
    """The work that the block before left is done before, and not counted."""
    _, log, _ = run(Protocol(warmup=0, samples=1), names=("vidc",))
    calls = [call for _, call in log]
    assert calls[6:10] == ["generate", "decode", "flush", "fill"]


def test_the_warm_up_is_run_and_not_counted(run):
    found, log, _ = run(Protocol(warmup=4, samples=1), names=("vidc",))
    calls = Counter(call for _, call in log)
    # A block a round, and two for each switch.
    assert calls["generate"] == (4 + 1) + 2 * (4 + 1)
    assert calls["decode"] == calls["switch"] == 5
    assert {len(values) for values in found["vidc"].values()} == {1}


def test_long_measurements_keep_their_stream(run):
    found, log, _ = run(Protocol(warmup=0, samples=400), names=("eager",))
    assert {len(values) for values in found["eager"].values()} == {400}
    assert Counter(call for _, call in log)["prompt"] == 3


def test_a_stream_that_is_not_finite_is_no_measurement(run):
    with pytest.raises(GateError) as error:
        run(Protocol(warmup=0, samples=1), names=("vidc",), value=float("nan"))
    assert error.value.code == "VIDC-BENCH-FINITE"
