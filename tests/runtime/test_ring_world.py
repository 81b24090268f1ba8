"""Program `ring_world`: frames, samplers, states and refusals, against the oracle."""

from dataclasses import replace

import pytest
import torch
from oasis_models import actions_of, images_of, pair

from vidc.compiler.config.presets import load_preset
from vidc.compiler.validate.metrics import compare
from vidc.plugins.errors import GateError, UsageError
from vidc.runtime.engines import Wrapper


def open_session(made, seed=0, engines=None):
    found = made.player if engines is None else made.player.with_engines(engines)
    return found.program(replace(found.resources, strict=True), seed)


def noise_of(session, count, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *session.spec.noise_shape, generator=generator)


def started(made, session, count=1):
    """Starts the session from images, and a world of the oracle from the same ones."""
    images = images_of(made.model, count)
    session.start(images)
    world = made.world()
    for image in images.permute(0, 3, 1, 2).float().div(255).mul(2).sub(1):
        world.remember(made.vae.encode(image[None])[0], torch.zeros(made.model.transformer.actions))
    return world


def error(found, expected):
    return compare(found, expected).relative_l2


@pytest.mark.parametrize("steps", [1, 4, 10])
@pytest.mark.parametrize("frames", [10, pytest.param(100, marks=pytest.mark.deep)])
def test_frames_in_open_loop_equal_the_oracle(steps, frames):
    made = pair(sampler={"steps": steps})
    session = open_session(made)
    world = started(made, session)
    worst = 0.0
    for action, noise in zip(
        actions_of(made.model, frames), noise_of(session, frames), strict=True
    ):
        expected = world.cached(noise.reshape(made.model.spec()["latent"]), action)
        world.remember(expected, action)
        session.act(action)
        worst = max(worst, error(session.generate(noise)[0], expected))
        session.force(expected[None])
    assert worst < 1e-5


def test_100_frames_in_open_loop_equal_the_oracle():
    made = pair(model={"layers": 2}, sampler={"steps": 2})
    session = open_session(made)
    world = started(made, session)
    errors = []
    for action, noise in zip(actions_of(made.model, 100), noise_of(session, 100), strict=True):
        expected = world.cached(noise.reshape(made.model.spec()["latent"]), action)
        world.remember(expected, action)
        session.act(action)
        errors.append(error(session.generate(noise)[0], expected))
        session.force(expected[None])
    assert max(errors) < 1e-5


def test_ring_equals_recomputing_the_window_until_it_is_full():
    """Later, kept keys and values depend on frames that left the window; recomputed ones do not."""
    made = pair()
    session = open_session(made)
    world, window = started(made, session), made.model.stream.window
    errors = []
    count = 3 * window
    for action, noise in zip(actions_of(made.model, count), noise_of(session, count), strict=True):
        session.act(action)
        found = session.generate(noise)
        errors.append(
            error(found[0], world.recomputed(noise.reshape(made.model.spec()["latent"]), action))
        )
        world.latents.append(found[0])
        world.actions.append(action)
    assert max(errors[: window - 1]) < 1e-5
    assert 1e-4 < max(errors[window - 1 :]) < 0.5


@pytest.mark.deep
def test_the_500m_model_equals_the_oracle():
    """One step of a frame after an image, at full size: 4.5 GB of memory."""
    tables = load_preset("oasis-500m").model.to_json() | {"sampler": {"steps": 1}}
    made = pair(**tables)
    session = open_session(made)
    world = started(made, session)
    action, noise = actions_of(made.model, 1)[0], noise_of(session, 1)[0]
    session.act(action)
    latent = session.generate(noise)
    drawn = noise.reshape(made.model.spec()["latent"])
    assert error(latent[0], world.cached(drawn, action)) < 1e-5
    assert error(latent[0], world.recomputed(drawn, action)) < 1e-5
    exact = made.vae.decode(latent).add(1).mul(127.5).clamp(0, 255)
    assert (session.decode(latent).permute(0, 3, 1, 2) - exact).abs().max() < 0.51


def test_closed_loop_stays_with_the_oracle():
    made = pair()
    session = open_session(made)
    world = started(made, session)
    errors = []
    for action, noise in zip(actions_of(made.model, 30), noise_of(session, 30), strict=True):
        expected = world.cached(noise.reshape(made.model.spec()["latent"]), action)
        world.remember(expected, action)
        session.act(action)
        picture = session.step(noise)
        exact = made.vae.decode(expected[None]).add(1).mul(127.5).clamp(0, 255)
        errors.append(error(picture[0].permute(2, 0, 1).float(), exact[0]))
    assert errors[0] < 5e-3
    assert max(errors) < 0.05


def test_several_images_and_their_actions_are_a_start():
    made = pair()
    images, actions = images_of(made.model, 3), actions_of(made.model, 4)
    frames = images.permute(0, 3, 1, 2)
    session, world = open_session(made), made.world()
    session.spawn(frames, actions=actions[:3])
    for image, action in zip(frames.float() / 127.5 - 1, actions[:3], strict=True):
        world.remember(made.vae.encode(image[None])[0], action)
    noise = noise_of(session, 1)[0]
    session.act(actions[3])
    found = session.generate(noise)
    assert (
        error(found[0], world.cached(noise.reshape(made.model.spec()["latent"]), actions[3])) < 1e-5
    )


def test_a_start_takes_the_newest_images_and_keeps_the_action():
    made = pair()
    window = made.model.stream.window
    images, noise = images_of(made.model, window + 2), noise_of(open_session(made), 1)[0]
    action = actions_of(made.model, 1)[0]
    frames = []
    for start, acts_first in ((images, True), (images[2:], False), (images[:window], True)):
        session = open_session(made)
        if acts_first:
            session.act(action)
        session.start(start)
        session.act(action)
        frames.append(session.step(noise))
    assert [frame.equal(frames[0]) for frame in frames] == [True, True, False]


def test_past_and_action_decide_frames():
    made = pair()
    noise = noise_of(open_session(made), 1)[0]

    def frame(seed=1, action=0, past=None):
        session = open_session(made)
        rows = None if past is None else actions_of(made.model, 1, past)
        session.spawn(images_of(made.model, 1, seed).permute(0, 3, 1, 2), actions=rows)
        session.act(actions_of(made.model, 1, action)[0])
        return session.generate(noise)

    others = frame(seed=2), frame(action=3), frame(past=4)
    assert not any(frame().equal(other) for other in others)


def test_latents_and_frames_have_the_model_s_sizes():
    session = open_session(pair())
    latent = session.generate()
    assert latent.shape == (1, 16, 6, 8)
    picture = session.decode(latent)
    assert (picture.shape, picture.dtype) == ((1, 30, 40, 3), torch.uint8)


def test_force_replaces_the_newest_frame():
    made = pair()
    noise = noise_of(open_session(made), 2)
    given = torch.randn(made.model.spec()["latent"])[None]

    def following(force, act=False):
        session = open_session(made)
        latent = session.generate(noise[0])
        if act:
            session.act(actions_of(made.model, 1)[0])
        if force is not None:
            session.force(latent if force == "own" else given)
        session.act(torch.zeros(6))
        return session.generate(noise[1])

    assert following("own").equal(following(None))
    assert not following("other").equal(following(None))
    # The forced frame keeps the action it was made with.
    assert following("other", act=True).equal(following("other"))
    with pytest.raises(UsageError, match="VIDC-SESSION-NO-BLOCK"):
        open_session(made).force(given)


class Failing(Wrapper):
    """Engine that fails once."""

    left = 1

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        if self.left:
            self.left -= 1
            raise RuntimeError("lost")


def test_force_after_a_failed_frame_waits_for_its_repetition():
    """The noise of the failed frame stands where the oldest frame of the full window was."""
    made = pair()
    engines = made.engines
    failing = Failing(engines["denoise"])
    failing.left = 0
    session = open_session(made, engines=engines | {"denoise": failing})
    expected = open_session(made)
    given = torch.randn(made.model.spec()["latent"])[None]
    for _ in range(made.model.stream.window):
        assert session.generate().equal(expected.generate())
    failing.left = 1
    with pytest.raises(RuntimeError, match="lost"):
        session.generate()
    with pytest.raises(UsageError, match="VIDC-SESSION-UNFINISHED"):
        session.force(given)
    for one in (session, expected):
        one.generate()
        one.force(given)
    assert session.generate().equal(expected.generate())
    failing.left = 1
    with pytest.raises(RuntimeError, match="lost"):
        session.generate()
    session.reset()
    session.generate()
    session.force(given)


@pytest.mark.parametrize("name", ["condition_frame", "denoise", "kv_update", "vae_decode"])
def test_a_failed_frame_can_be_repeated(name):
    made = pair()
    expected = open_session(made)
    engines = made.engines
    session = open_session(made, engines=engines | {name: Failing(engines[name])})
    latents = expected.generate(), expected.generate()
    with pytest.raises(RuntimeError, match="lost"):
        session.decode(session.generate())
    if name == "vae_decode":
        assert session.decode(latents[0]).equal(expected.decode(latents[0]))
        session.reset()
    assert [session.generate().equal(latent) for latent in latents] == [True, True]


def test_a_failed_start_asks_for_a_reset():
    made = pair()
    engines = made.engines
    session = open_session(made, engines=engines | {"kv_update": Failing(engines["kv_update"])})
    images = images_of(made.model, 1)
    with pytest.raises(RuntimeError, match="lost"):
        session.start(images)
    with pytest.raises(UsageError, match="VIDC-SESSION-FAILED"):
        session.step()
    session.reset()
    session.start(images)
    expected = open_session(made)
    expected.start(images)
    assert session.step().equal(expected.step())


@pytest.mark.parametrize(
    ("actions", "code"),
    [
        (torch.zeros(7), "ACTIONS"),
        (torch.zeros(1, 6), "ACTIONS"),
        (torch.tensor([0, 0.5, 0, 0, 0, 0]), "ACTIONS"),
        (torch.tensor([0, 0, 0, 1.5, 0, 0]), "ACTIONS"),
        (torch.tensor([0, 0, 0, 0, -1.1, 0]), "ACTIONS"),
        (torch.tensor([0, -1, 0, 0, 0, 0]), "ACTIONS"),
        (torch.tensor([0, torch.nan, 0, 0, 0, 0]), "FINITE"),
        (torch.zeros(6, dtype=torch.complex64), "ACTIONS"),
        ([0, 0, 0, 0, 0, 0], "ACTIONS"),
        (3, "ACTIONS"),
        (None, "ACTIONS"),
    ],
)
def test_refuses_actions_of_another_width_or_kind(actions, code):
    session = open_session(pair())
    with pytest.raises(UsageError, match=f"VIDC-SESSION-{code}"):
        session.act(actions)
    session.act(torch.tensor([1, 0, 1, -0.5, 1, 0]))
    session.step()


FRAMES = torch.zeros(2, 3, 30, 40)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ((torch.zeros(2, 3, 30, 41),), "START"),
        ((torch.zeros(2, 30, 40, 3),), "START"),
        ((torch.zeros(7, 3, 30, 40),), "START"),
        ((torch.zeros(0, 3, 30, 40),), "START"),
        ((torch.zeros(2, 3, 30, 40, dtype=torch.int64),), "START"),
        ((torch.full((2, 3, 30, 40), 1.5),), "START"),
        ((torch.full((2, 3, 30, 40), torch.nan),), "FINITE"),
        ((None,), "START"),
        ((FRAMES, None, torch.zeros(1, 6)), "ACTIONS"),
        ((FRAMES, None, torch.zeros(2, 7)), "ACTIONS"),
        ((FRAMES, None, torch.full((2, 6), 2)), "ACTIONS"),
    ],
)
def test_refuses_another_model_s_frames(given, code):
    made = pair()
    session, untouched = open_session(made), open_session(made)
    with pytest.raises(UsageError, match=f"VIDC-SESSION-{code}"):
        session.spawn(*given)
    assert session.step().equal(untouched.step())


def test_refuses_to_force_a_latent_of_another_size():
    with pytest.raises(UsageError, match="VIDC-SESSION-LATENT"):
        open_session(pair()).force(torch.zeros(1, 16, 6, 9))


@pytest.mark.parametrize("part", ["transformer.external_cond.bias", "vae.predictor.bias"])
def test_frames_that_are_not_finite_end_the_session(part):
    made = pair()
    owner, _, name = part.partition(".")
    getattr(made, owner).get_parameter(name)[0] = torch.nan
    player = made.player
    session = player.program(replace(player.resources, strict=True))
    for _ in range(2):
        with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
            session.step()


def test_a_start_whose_latents_are_not_finite_ends_the_session():
    class Broken(Wrapper):
        def run(self, buffers, states):
            self._engine.run(buffers, states)
            buffers["latent"].view(-1)[0] = torch.nan

    made = pair()
    engines = made.engines
    session = open_session(made, engines=engines | {"vae_encode": Broken(engines["vae_encode"])})
    for _ in range(2):
        with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
            session.start(images_of(made.model, 1))
