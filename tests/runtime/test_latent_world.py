"""Program `latent_world`: latents, frames, states and refusals, beside diffusers' networks."""

from dataclasses import replace

import pytest
import torch
from gamengen_models import (
    GUIDED,
    NOISED,
    PUBLIC_GUIDANCE,
    actions_of,
    drawn,
    pair,
    start_of,
)

from vidc.compiler.validate.metrics import compare
from vidc.plugins.errors import GateError, UsageError
from vidc.runtime.engines import Wrapper

LIMIT = 1e-5
MODELS = {
    "plain": {},
    "ten steps": {"steps": 10},
    "guided": GUIDED,
    "public guidance": PUBLIC_GUIDANCE,
    "noised": NOISED,
}


@pytest.fixture(scope="module")
def made():
    return pair()


def open_session(made, seed=0, engines=None):
    player = made.player if engines is None else made.player.with_engines(engines)
    return player.program(replace(player.resources, strict=True), seed)


class Watched(Wrapper):
    """Engine whose predictions are kept, and replaced by those of the oracle."""

    def __init__(self, engine, guided):
        super().__init__(engine)
        self.found, self.expected, self.guided = [], [], guided

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        self.found.append(buffers["velocity"].clone())
        if not self.guided:
            buffers["velocity"].copy_(self.expected[len(self.found) - 1])


def play_both(made, frames, session, watched=None):
    """Yields the oracle's world and latent, and the session's latent."""
    world = made.world(start_of(made.model))
    session.spawn(world.past, actions=world.actions)
    for index, action in enumerate(actions_of(made.model, frames)):
        values = drawn(*session.spec.noise_shape, seed=100 + index)
        pieces = values[0].split([draw.size for draw in session.spec.draws])
        world.seen, world.noised = [], []
        expected = world.latent(
            action, [p.view(d.shape) for p, d in zip(pieces, session.spec.draws, strict=True)]
        )
        if watched is not None:
            watched.found, watched.expected = [], world.seen
        session.act(action)
        yield world, expected, session.generate(values)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("plain", 12), pytest.param("plain", 100, marks=pytest.mark.deep), ("ten steps", 4),
        ("guided", 10), ("public guidance", 5), ("noised", 10),
    ],
)  # fmt: skip
def test_frames_in_open_loop_equal_the_oracle(name, count):
    """Every frame starts from the oracle's past latents."""
    made = pair(sampler=MODELS[name])
    engines = made.engines()
    watched = Watched(engines["denoise"], made.model.sampler.guided)
    session, worst = open_session(made, engines=engines | {"denoise": watched}), 0.0
    for world, expected, latent in play_both(made, count, session, watched):
        if not made.model.sampler.guided:
            pairs = zip(watched.found, world.seen, strict=True)
            worst = max(worst, *(compare(found, v).relative_l2 for found, v in pairs))
        worst = max(worst, compare(latent, expected).relative_l2)
        if session.blocks % 10 == 1:
            shown = world.decode(expected).add(1).mul(127.5).round().clamp(0, 255)
            apart = session.decode(expected).permute(0, 3, 1, 2).int() - shown.int()
            assert apart.abs().max() <= 1
        session.force(expected)
    assert worst < LIMIT


def test_closed_loop_stays_with_the_oracle(made):
    errors = [
        compare(latent, expected).relative_l2
        for _, expected, latent in play_both(made, 30, open_session(made))
    ]
    assert errors[0] < LIMIT
    assert max(errors) < 10 * LIMIT


def test_past_and_actions_decide_latents(made):
    past, actions = start_of(made.model)

    def latent(past=past, actions=actions, action=0):
        with open_session(made) as session:
            session.spawn(past, actions=actions)
            session.act(action)
            return session.generate()

    plain = latent()
    changed = torch.cat([(actions[:1] + 1) % made.model.unet.actions, actions[1:]])
    for other in (latent(past=past.flip(0)), latent(actions=changed), latent(action=1)):
        assert compare(other, plain).relative_l2 > 1e-3
    # The next frame's own action takes the last one's place.
    replaced = torch.cat([actions[:-1], (actions[-1:] + 1) % made.model.unet.actions])
    assert latent(actions=replaced).equal(plain)


def test_frames_are_encoded_to_the_start(made):
    session, size = open_session(made), made.model.frames
    frames = (torch.rand(3, 3, size.height, size.width) * 255).to(torch.uint8)
    world = made.world(start_of(made.model))
    encoded = world.encode(frames.float() / 127.5 - 1)
    session.spawn(frames)
    past = session._states["past"].view(encoded.shape)
    assert compare(past, encoded).relative_l2 < LIMIT
    session.start(frames.permute(0, 2, 3, 1)[-1:])
    assert compare(past, encoded[-1:].expand(3, -1, -1, -1)).relative_l2 < LIMIT
    session.start(frames.permute(0, 2, 3, 1)[[0, *range(3)]])
    assert compare(past, encoded).relative_l2 < LIMIT


def test_its_spec_counts_the_calls_of_a_frame(made):
    assert open_session(made).spec.calls == {
        "block": {"condition_frame": 1, "denoise": 4}, "vae": {"vae_decode": 1}
    }  # fmt: skip


@pytest.mark.parametrize(
    ("actions", "code"),
    [
        (torch.zeros(5), "ACTIONS"),
        (torch.ones(5), "ACTIONS"),
        (torch.eye(6)[0], "ACTIONS"),
        (torch.tensor([0.5, 0.5, 0, 0, 0]), "ACTIONS"),
        (torch.tensor([torch.nan, 0, 0, 0, 0]), "FINITE"),
        (5, "ACTIONS"),
        (-1, "ACTIONS"),
        (torch.tensor(1.0), "ACTIONS"),
        ("left", "ACTIONS"),
        (None, "ACTIONS"),
    ],
)
def test_refuses_actions_of_another_width_or_kind(made, actions, code):
    session = open_session(made)
    with pytest.raises(UsageError, match=f"VIDC-SESSION-{code}"):
        session.act(actions)
    session.generate()


@pytest.mark.parametrize(
    ("past", "actions", "code"),
    [
        (torch.zeros(3, 4, 7, 8), None, "START"),
        (torch.zeros(2, 4, 7, 9), None, "START"),
        (torch.zeros(3, 5, 7, 9), None, "START"),
        (torch.zeros(3, 3, 56, 64), None, "START"),
        (torch.zeros(4, 3, 56, 72, dtype=torch.uint8), None, "START"),
        (torch.full((3, 3, 56, 72), 1.5), None, "START"),
        (torch.zeros(3, 4, 7, 9, dtype=torch.int64), None, "START"),
        (None, None, "START"),
        (torch.full((3, 4, 7, 9), torch.nan), None, "FINITE"),
        (torch.full((3, 3, 56, 72), torch.inf), None, "FINITE"),
        (torch.zeros(3, 4, 7, 9), torch.zeros(3, 6), "ACTIONS"),
        (torch.zeros(3, 4, 7, 9), torch.tensor([0, 1]), "ACTIONS"),
        (torch.zeros(3, 4, 7, 9), torch.tensor([0, 1, 5]), "ACTIONS"),
    ],
)
def test_refuses_another_model_s_state(made, past, actions, code):
    session, untouched = open_session(made), open_session(made)
    with pytest.raises(UsageError, match=f"VIDC-SESSION-{code}"):
        session.spawn(past, actions=actions)
    assert session.generate().equal(untouched.generate())


def test_refuses_to_force_a_latent_of_another_size(made):
    with pytest.raises(UsageError, match="VIDC-SESSION-LATENT"):
        open_session(made).force(torch.zeros(1, 4, 7, 8))


@pytest.mark.parametrize(("component", "name"), [("denoise", "velocity"), ("vae_decode", "frames")])
def test_frames_that_are_not_finite_end_the_session(made, component, name):
    class Broken(Wrapper):
        def run(self, buffers, states):
            self._engine.run(buffers, states)
            buffers[name].view(-1)[0] = torch.nan

    engines = made.engines()
    player = made.player.with_engines(engines | {component: Broken(engines[component])})
    session = player.program(replace(player.resources, strict=True))
    for _ in range(2):
        with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
            session.step()
