"""Promises of sessions of all worlds: seeds, interleaving, resets, memory, refused inputs."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import diamond_models
import gamengen_models
import oasis_models
import pytest
import torch

from vidc.plugins.errors import UsageError


@dataclass(frozen=True)
class Case:
    """A family of worlds.

    Attributes:
        pair: makes a model and its oracle, with some tables replaced.
        small: tables under which a frame takes milliseconds.
        start: draws the arguments of ``spawn`` for a model from a seed.
        actions: draws so many actions for a model.
    """

    pair: Callable[..., Any]
    small: dict[str, dict[str, Any]]
    start: Callable[[Any, int], tuple[Any, ...]]
    actions: Callable[[Any, int], Any]


def gamengen_start(model, seed):
    return gamengen_models.start_of(model, seed)[:1]


def oasis_start(model, seed):
    frames = oasis_models.images_of(model, 2, seed).permute(0, 3, 1, 2)
    return (frames.float() / 127.5 - 1,)


CASES = {
    "world": Case(
        diamond_models.pair, {"frames": {"height": 4, "width": 4}},
        diamond_models.start_of, diamond_models.actions_of,
    ),
    "latent_world": Case(
        gamengen_models.pair, {"frames": {"height": 40, "width": 40}, "sampler": {"steps": 1}},
        gamengen_start, gamengen_models.actions_of,
    ),
    "ring_world": Case(
        oasis_models.pair,
        {
            "model": {"dim": 16, "heads": 2, "layers": 1}, "stream": {"height": 20, "width": 20},
            "vae": {"dim": 32, "decoder_layers": 1}, "sampler": {"steps": 2},
        },
        oasis_start, oasis_models.actions_of,
    ),
}  # fmt: skip


class Begun:
    """Sessions of one small world, over the same engines.

    Args:
        case: the family.
        tables: of the model, that replace the small model's.
    """

    def __init__(self, case, **tables):
        self.case = case
        made = case.pair(**tables)
        self.model, self._player = made.model, made.player

    @property
    def engines(self):
        return self._player.resources.engines

    def open(self, seed=0, strict=True):
        """Returns a new session."""
        return self._player.program(replace(self._player.resources, strict=strict), seed)

    def begin(self, session, seed):
        """Gives a session a start state."""
        session.spawn(*self.case.start(self.model, seed))


@pytest.fixture(scope="module", params=CASES)
def world(request):
    return Begun(CASES[request.param])


def test_noise_comes_from_the_seed(world):
    def frames(seed):
        with world.open(seed) as session:
            world.begin(session, 1)
            return [session.step() for _ in range(3)]

    first, again, other = frames(1), frames(1), frames(2)
    assert all(a.equal(b) for a, b in zip(first, again, strict=True))
    assert not first[0].equal(other[0])
    assert not first[0].equal(first[1])


def test_interleaved_sessions_equal_single_ones(world):
    actions = world.case.actions(world.model, 8)

    def advance(session, index):
        session.act(actions[index])
        return session.generate()

    alone = {}
    for seed in (1, 2):
        session = world.open(seed)
        world.begin(session, seed)
        alone[seed] = [advance(session, index) for index in range(8)]
    sessions = {seed: world.open(seed) for seed in (1, 2)}
    for seed, session in sessions.items():
        world.begin(session, seed)
    for index in range(8):
        for seed, session in sessions.items():
            assert advance(session, index).equal(alone[seed][index])
    assert not alone[1][0].equal(alone[2][0])
    sessions[1].reset(1)
    world.begin(sessions[1], 1)
    assert [advance(sessions[1], i).equal(alone[1][i]) for i in range(8)] == [True] * 8


def test_reset_is_a_new_session(world):
    session = world.open(3)
    fresh = session.step()
    world.begin(session, 1)
    session.act(world.case.actions(world.model, 1)[0])
    session.step()
    session.reset(3)
    assert session.step().equal(fresh)


def test_generate_and_decode_make_the_same_frame(world):
    first, second = world.open(), world.open()
    for session in (first, second):
        world.begin(session, 1)
    assert first.decode(first.generate()).equal(second.step())


def test_refuses_images_of_another_size(world):
    session, untouched = world.open(), world.open()
    image = torch.zeros_like(untouched.step())
    refused = (image[:, :, 1:], image[0], image[:0], image.float(), None)
    for images in refused:
        with pytest.raises(UsageError, match="VIDC-SESSION-START"):
            session.start(images)
    untouched.reset()
    assert session.step().equal(untouched.step())


def test_only_strict_sessions_refuse_a_start_that_is_not_finite(world):
    first, *others = world.case.start(world.model, 1)
    with pytest.raises(UsageError, match="VIDC-SESSION-FINITE"):
        world.open().spawn(first * torch.nan, *others)
    for wrong in (torch.nan, torch.inf):
        session = world.open(strict=False)
        session.spawn(torch.full_like(first, wrong), *others)
        session.step()


def test_refuses_noise_and_latents_of_another_size(world):
    session = world.open()
    latent = session.generate()
    for noise in (torch.zeros(1, 3), latent[..., 1:], torch.zeros(5), 7):
        with pytest.raises(UsageError, match="VIDC-SESSION-NOISE"):
            session.step(noise)
    with pytest.raises(UsageError, match="VIDC-SESSION-LATENT"):
        session.decode(latent[..., 1:])


@pytest.mark.parametrize("frames", [100, pytest.param(10_000, marks=pytest.mark.deep)])
@pytest.mark.parametrize("name", CASES)
def test_many_frames_take_no_more_memory(name, frames):
    world = Begun(CASES[name], **CASES[name].small)
    session = world.open()

    def tensors():
        gc.collect()
        return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())

    states = {state.name for each in world.engines.values() for state in each.signature.states}

    def addresses():
        return {name: session._states[name].data_ptr() for name in states}

    world.begin(session, 1)
    session.step()
    before, placed = tensors(), addresses()
    spread = [float(session.step().float().std()) for _ in range(frames)]
    assert tensors() == before
    assert addresses() == placed
    assert min(spread[-10:]) > 1
