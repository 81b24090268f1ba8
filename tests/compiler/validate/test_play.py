"""States of a stream that a validation brings each component to."""

from collections import Counter
from dataclasses import replace

import pytest
import torch

from vidc.compiler.validate.golden import make_inputs
from vidc.compiler.validate.scenario import Scenario

COMPONENTS = Scenario(blocks=2, switch_after=1, rollout=False)


class Noted:
    """An engine that notes where its calls are in the stream, in frames."""

    def __init__(self, name, engine, frame_tokens, notes):
        self.signature = engine.signature
        self._name, self._engine, self._notes = name, engine, notes
        self._frame_tokens = frame_tokens

    def run(self, buffers, states):
        if "position" in buffers.inputs:
            place = (
                int(buffers[name]) // self._frame_tokens for name in ("position", "valid_length")
            )
            self._notes.append((self._name, *place))
        self._engine.run(buffers, states)


def noting(model, notes):
    """A player over engines that note their calls."""
    return model.player(
        {
            name: Noted(name, engine, model.stream.frame_tokens, notes)
            for name, engine in model.engines.items()
        }
    )


@pytest.fixture(scope="module")
def calls(model):
    notes = []
    inputs = make_inputs(COMPONENTS, model.stream)
    noting(model, notes).components(COMPONENTS, inputs, lambda *_: None)
    return notes


def test_a_rollout_runs_the_clean_pass_of_every_block(model):
    """Ranges for static scales are recorded in rollouts; a switch alone would drop a pass."""
    notes, scenario = [], Scenario(blocks=3, switch_after=2, rollout=True)
    noting(model, notes).rollout(scenario, make_inputs(scenario, model.stream))
    passes = [call for call in notes if call[0] == "kv_update"]
    assert passes == [("kv_update", first, first + 3) for first in (0, 3, 6)]


def test_every_recache_is_played_filling_and_rolling(calls):
    recaches = {call for call in calls if call[0].startswith("recache")}
    assert recaches == {("recache_6", 0, 6), ("recache_9", 0, 9), ("recache_6", 6, 9)}


def test_clean_passes_are_played_filling_and_rolling(calls):
    passes = {call for call in calls if call[0] == "kv_update"}
    assert passes == {("kv_update", first, min(first + 3, 9)) for first in (0, 3, 6, 9)}


def test_one_pass_of_denoising_sees_a_wrapped_ring(calls):
    found = Counter(call for call in calls if call[0] == "denoise")
    assert found == {("denoise", 0, 3): 2, ("denoise", 3, 6): 2, ("denoise", 12, 9): 1}


@pytest.mark.parametrize(
    ("window", "sink", "recached"),
    [(12, 3, [6, 9, 12, 9]), (21, 0, [6, 9, 12, 15, 18, 21, 21]), (8, 3, [6, 5]), (3, 0, [3])],
)
def test_switches_take_every_path(model, window, sink, recached):
    stream = replace(model.stream, window=window, sink=sink)
    assert [stream.recached(blocks * stream.block) for blocks in stream.switch_points] == recached
    assert {*recached} - {stream.block} == {*stream.recache_frames}


def test_inputs_move_as_one(model):
    moved = make_inputs(COMPONENTS, model.stream).to(torch.device("meta"))
    assert moved.prompts.device == moved.noise.device == torch.device("meta")
