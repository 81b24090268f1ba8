import os
import re
from dataclasses import replace

import pytest

from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import find_target
from vidc.compiler.validate import estimate
from vidc.compiler.validate.estimate import (
    about,
    announcement,
    latents_seconds,
    reference_seconds,
    replay_seconds,
    scenario,
)
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import UsageError

SWITCHED = Scenario(blocks=8, switch_after=5, rollout=True)
FP32 = {"transformer": "fp32", "vae": "fp32"}


@pytest.fixture
def cores(monkeypatch):
    def limit(count):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
        monkeypatch.setattr(os, "cpu_count", lambda: 64)

    return limit


def settings(preset="longlive-1.3b", *assignments):
    return resolve(preset, gpu="cpu", assignments=assignments, environ={})


def on_gpu(settings):
    return replace(settings, target=find_target("h100", "--gpu"))


def test_only_the_cores_of_the_process_count(cores):
    model = settings().model
    cores(1)
    one = replay_seconds(model, SWITCHED)
    cores(4)
    assert replay_seconds(model, SWITCHED) == pytest.approx(one / 4)


def test_each_part_of_a_scenario_takes_its_time(cores):
    cores(1)
    model = settings().model
    seconds = replay_seconds(model, SWITCHED)
    frame = model.transformer_part.frame_flops() / estimate.CPU_FLOPS_A_CORE
    decode = model.decode_flops() / estimate.CPU_FLOPS_A_CORE
    # Two rollouts of 8 blocks at 5 passes with a recache of 9 frames; recaches of 6, 9, 12 and 9
    # frames, between 5 blocks and a pass of denoising; two blocks encoded; the reference decoded.
    frames = 2 * (8 * 5 * 3 + 9) + (6 + 9 + 12 + 9) + 6 * 3
    assert seconds == pytest.approx(frames * frame + (3 * 8 + 2) * decode)
    alone = replay_seconds(model, replace(SWITCHED, rollout=False))
    assert reference_seconds(model, SWITCHED, FP32) == pytest.approx(alone)
    mixed = reference_seconds(model, SWITCHED, {**FP32, "transformer": "bf16"})
    assert mixed == pytest.approx(alone + seconds - 8 * decode)
    # In 8 bits, each block is also made and decoded from the reference's blocks.
    rollout = (8 * 5 * 3 + 9) * frame + 8 * decode
    assert replay_seconds(model, SWITCHED, quantized=True) == pytest.approx(seconds + rollout)
    unforced = settings("world-tiny").model
    exact, rounded = (replay_seconds(unforced, SWITCHED, quantized=q) for q in (False, True))
    assert exact == rounded
    # What a recipe makes of it is played besides, whatever the rest is in.
    narrow = reference_seconds(model, SWITCHED, FP32, quantized=True)
    assert narrow == pytest.approx(mixed)


def test_latents_estimate_excludes_decoding(cores):
    cores(1)
    model = settings().model
    frame = model.transformer_part.frame_flops() / estimate.CPU_FLOPS_A_CORE
    assert latents_seconds(model, SWITCHED) == pytest.approx((8 * 5 * 3 + 9) * frame)


def test_named_level_is_used(cores):
    cores(1)
    level = "validate.level"
    whole = Scenario(blocks=12, switch_after=7, rollout=True)
    assert not scenario(settings()).rollout
    assert scenario(settings("longlive-1.3b", f"{level}=rollout")) == whole
    assert scenario(on_gpu(settings())) == whole
    assert not scenario(on_gpu(settings("longlive-1.3b", f"{level}=component"))).rollout
    assert scenario(settings("tiny")).rollout
    assert not scenario(settings("tiny", f"{level}=component")).rollout
    with pytest.raises(UsageError, match=r"'rolout'.*\n.*'rollout'"):
        settings("tiny", f"{level}=rolout")


@pytest.mark.parametrize(
    ("seconds", "text"), [(59, ""), (60, "about 1 minute"), (570, "about 10 minutes")]
)
def test_durations_as_text(seconds, text):
    assert about(seconds) == text


def test_announces_only_cpu_minutes(cores):
    cores(1)
    text = announcement(settings())
    assert text is not None
    assert text.startswith("validating every component without a rollout: ")
    assert "on this CPU" in text
    assert announcement(on_gpu(settings())) is None
    assert announcement(settings("tiny")) is None


def test_a_recipe_s_reference_is_announced_too(cores):
    cores(1)
    high = settings("longlive-1.3b", "precision.default=fp32")
    narrow = resolve("longlive-1.3b", gpu="cpu", precision="int8", environ={})
    assert high.precision == narrow.precision

    def minutes(settings):
        return int(re.search(r"about (\d+) minutes", announcement(settings))[1])

    assert minutes(narrow) == pytest.approx(2 * minutes(high), abs=1)
