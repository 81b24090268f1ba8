"""Work of a stream when it opens, and work that it prepares only when it is needed."""

from dataclasses import replace

import pytest
import torch
from small_stream import SPEC, begun, embeds, small_bundle

from vidc.runtime import Bundle
from vidc.runtime.graphs import Runner, Runners


class Warming(Runner):
    """Runs and counts work as a runner that captures graphs does."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def prepare(self, works, warm_up=None):
        for work in works if warm_up is None else warm_up:
            work()
        return super().prepare(works)

    def prepare_at_first_call(self, work):
        called = []

        def call():
            self.calls.append("replay" if called else "prepare")
            called.append(1)
            work()

        return call


@pytest.fixture
def opened():
    """A bundle whose runners warm up; the components that run, and calls of late work."""
    bundle, log, calls = small_bundle(), [], []
    resources = replace(bundle.resources, runners=Runners(lambda: Warming(calls)))
    for name, engine in bundle.engines.items():
        engine.before = lambda name=name: log.append(name)
    return Bundle(bundle.program, resources), log, calls


def test_opening_runs_one_denoising_step_and_no_recache(opened):
    bundle, log, calls = opened
    assert len(SPEC.timesteps) > 1
    bundle.session()
    assert log == ["denoise", "kv_update", "text_kv", "vae_decode_first", "vae_decode"]
    assert not calls


def test_a_switch_is_prepared_once_for_each_number_of_frames(opened):
    bundle, _, calls = opened
    session = begun(bundle, blocks=1)
    for _ in range(4):
        session.switch_prompt(embeds(2))
        session.step()
    # It recomputes 2 frames, then 4, and in a full window always 4.
    assert calls == ["prepare", "prepare", "replay", "replay"]


def test_sessions_that_are_opened_in_the_midst_of_others_change_nothing(opened):
    def rolled(session, blocks):
        return [session.step() for _ in range(blocks)]

    bundle, _, _ = opened
    alone = begun(bundle, blocks=1, seed=4)
    expected = rolled(alone, 3)
    alone.switch_prompt(embeds(2))
    expected += rolled(alone, 2)

    first = begun(bundle, blocks=1, seed=4)
    found = rolled(first, 3)
    second = begun(bundle, blocks=4, seed=5)
    second.switch_prompt(embeds(3))
    first.switch_prompt(embeds(2))
    for _ in range(2):
        second.step()
        found += rolled(first, 1)
    assert all(map(torch.equal, found, expected))
