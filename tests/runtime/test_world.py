"""Program `world`: frames, samplers, states and refusals, against the oracle in plain PyTorch."""

from dataclasses import replace

import diamond_oracle as oracle
import pytest
import torch
from diamond_models import ATARI, HEUN, HIGHER_QUALITY, actions_of, pair, start_of

from vidc.compiler.validate.metrics import compare
from vidc.plugins.errors import GateError, UsageError
from vidc.runtime.engines import Wrapper
from vidc.runtime.programs.world import levels

MODELS = {"fast": {}, "higher_quality": HIGHER_QUALITY, "heun": HEUN, "atari": ATARI}
SMALL = {"frames": {"height": 5, "width": 7}}


def open_session(made, seed=0, engines=None):
    found = made.player if engines is None else made.player.with_engines(engines)
    return found.program(replace(found.resources, strict=True), seed)


class Drawn:
    """Gives the oracle consecutive pieces of a frame's noise."""

    def __init__(self):
        self.values = None

    def __call__(self, shape):
        count = torch.Size(shape).numel()
        piece, self.values = self.values[:count], self.values[count:]
        return piece.reshape(shape)


class Forced(Wrapper):
    """Engine whose outputs are kept, and replaced by those of the oracle."""

    def __init__(self, engine, calls):
        super().__init__(engine)
        self.calls = calls

    def run(self, buffers, states):
        self._engine.run(buffers, states)
        self.calls.found.append(buffers["denoised"].clone())
        buffers["denoised"].copy_(self.calls.expected[len(self.calls.found) - 1])


class Calls:
    """Outputs of a frame's calls, before truncation."""

    def __init__(self):
        self.found, self.expected = [], []


def play_both(made, frames, session, forced=None):
    """Yields the oracle's frame and its calls, and the session's uint8 frame."""
    start, noise = start_of(made.model), torch.Generator().manual_seed(5)
    drawn = Drawn()
    world = made.world(start, drawn)
    session.spawn(*start)
    for action in actions_of(made.model, frames, seed=2):
        values = torch.randn(session.spec.noise_shape, generator=noise)
        world.seen, drawn.values = [], values[0]
        expected = world.step(action)
        assert len(drawn.values) == 0
        if forced is not None:
            forced.found, forced.expected = [], world.seen
        session.act(action)
        yield expected, session.step(values)


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("fast", 100),
        ("higher_quality", 20),
        pytest.param("higher_quality", 100, marks=pytest.mark.deep),
        ("heun", 20),
        ("atari", 50),
    ],
)
def test_frames_in_open_loop_equal_the_oracle(name, count):
    made = pair(**(MODELS[name] | SMALL))
    calls = Calls()
    engines = {n: Forced(engine, calls) for n, engine in made.engines.items()}
    session, worst = open_session(made, engines=engines), 0.0
    for expected, frame in play_both(made, count, session, calls):
        assert len(calls.found) == len(calls.expected)
        for found, exact in zip(calls.found, calls.expected, strict=True):
            worst = max(worst, compare(found, exact).relative_l2)
            apart = levels(found).int() - levels(exact).int()
            assert apart.abs().max() <= 1
        shown = ((expected + 1) * 127.5).round().to(torch.uint8).permute(0, 2, 3, 1)
        assert frame.equal(shown)
    assert worst < 1e-5


@pytest.mark.parametrize("name", ["fast", "atari"])
def test_closed_loop_stays_with_the_oracle(name):
    made = pair(**MODELS[name])
    errors = [
        compare(frame.float(), (expected.permute(0, 2, 3, 1) + 1) * 127.5).relative_l2
        for expected, frame in play_both(made, 30, open_session(made))
    ]
    assert errors[0] < 1e-4
    assert max(errors) < 0.05


def test_past_and_actions_decide_frames():
    made = pair()
    start = start_of(made.model)

    def frame(low=start[0], full=start[1], actions=start[2], action=None):
        with open_session(made) as session:
            session.spawn(low, full, actions)
            if action is not None:
                session.act(action)
            return session.step()

    one = torch.ones(made.model.denoiser.actions)
    others = (
        frame(low=start[0].flip(0)), frame(full=-start[1]), frame(actions=1 - start[2]),
        frame(action=one),
    )  # fmt: skip
    assert not any(frame().equal(other) for other in others)
    # The next frame's own action takes the last one's place.
    replaced = torch.cat([start[2][:-1], 1 - start[2][-1:]])
    assert frame(actions=replaced).equal(frame())


def test_draws_are_those_of_the_public_sampler():
    names = [draw.name for draw in open_session(pair()).spec.draws]
    assert names == [
        "denoise.x", "denoise.offset.0", "denoise.past.0", "upsample.x", "upsample.churn.0",
    ]  # fmt: skip
    spec = open_session(pair(**HIGHER_QUALITY)).spec
    assert spec.calls["block"] == {"denoise": 3, "upsample": 10}
    # The last step starts at sigma 1, which s_tmin = 1 still churns.
    assert sum(draw.name.startswith("upsample.churn") for draw in spec.draws) == 10


def test_images_are_a_start():
    made = pair()
    height, width = open_session(made).spec.frame_size
    images = (torch.rand(2, height, width, 3) * 255).to(torch.uint8)
    session = open_session(made)
    session.start(images)
    first = session.step()
    session.reset(0)
    session.start(torch.cat([images[:1], images[:1], images]))
    assert session.step().equal(first)
    low = session._states["past.low"].reshape(4, 3, 9, 14)
    means = images.permute(0, 3, 1, 2).float().mean((2, 3)) / 127.5 - 1
    # The session has made a frame since: the images' copies have moved by one.
    assert torch.allclose(low[:3].mean((2, 3)), means[[0, 0, 1]], atol=0.02)


def test_generated_values_are_those_of_8_bits():
    made = pair()
    session = open_session(made)
    session.spawn(*start_of(made.model))
    latent = session.generate()
    # Each value is one of 256 levels, but for rounding.
    assert ((latent + 1) * 127.5 - ((latent + 1) * 127.5).round()).abs().max() < 1e-3


def test_a_failed_frame_can_be_repeated():
    made = pair()
    start = start_of(made.model)
    expected = open_session(made)
    expected.spawn(*start)

    class Failing(Wrapper):
        left = 1

        def run(self, buffers, states):
            if self.left:
                self.left -= 1
                raise RuntimeError("lost")
            self._engine.run(buffers, states)

    engines = made.engines
    session = open_session(made, engines=engines | {"upsample": Failing(engines["upsample"])})
    session.spawn(*start)
    with pytest.raises(RuntimeError, match="lost"):
        session.step()
    assert [session.step().equal(expected.step()) for _ in range(2)] == [True, True]


@pytest.mark.parametrize(
    ("actions", "code"),
    [
        (torch.zeros(6), "ACTIONS"),
        (torch.zeros(1, 5), "ACTIONS"),
        (torch.tensor([0, 0.5, 0, 0, 0]), "ACTIONS"),
        (torch.tensor([0, -1, 0, 0, 0]), "ACTIONS"),
        (torch.tensor([0, torch.nan, 0, 0, 0]), "FINITE"),
        (torch.zeros(5, dtype=torch.complex64), "ACTIONS"),
        ([0, 0, 0, 0, 0], "ACTIONS"),
        (3, "ACTIONS"),
        (None, "ACTIONS"),
    ],
)
def test_refuses_actions_of_another_width_or_kind(actions, code):
    session = open_session(pair())
    with pytest.raises(UsageError, match=f"VIDC-SESSION-{code}"):
        session.act(actions)
    session.step()


@pytest.mark.parametrize(
    "actions", [torch.zeros(5), torch.ones(5), torch.tensor(5), -1, 5, torch.tensor(1.0)]
)
def test_refuses_what_is_not_one_action(actions):
    with pytest.raises(UsageError, match="VIDC-SESSION-ACTIONS"):
        open_session(pair(**ATARI)).act(actions)


def test_an_index_is_a_one_hot_action():
    made = pair(**ATARI)
    rows = torch.eye(5)
    frames = []
    for action in (rows[3], 3, torch.tensor(3), rows[2]):
        session = open_session(made)
        session.spawn(start_of(made.model)[0], actions=torch.tensor([0, 1, 2, 3]))
        session.act(action)
        frames.append(session.step())
    assert [frame.equal(frames[0]) for frame in frames] == [True, True, True, False]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({0: torch.zeros(4, 3, 9, 15)}, "START"),
        ({0: torch.zeros(3, 3, 9, 14)}, "START"),
        ({0: torch.zeros(4, 3, 9, 14, dtype=torch.int64)}, "START"),
        ({1: torch.zeros(1, 3, 27, 41)}, "START"),
        ({1: torch.zeros(0, 3, 27, 42)}, "START"),
        ({1: None}, "START"),
        ({0: torch.full((4, 3, 9, 14), 1.5)}, "START"),
        ({0: torch.full((4, 3, 9, 14), torch.nan)}, "FINITE"),
        ({1: torch.full((1, 3, 27, 42), torch.inf)}, "FINITE"),
        ({2: torch.zeros(4, 6)}, "ACTIONS"),
        ({2: torch.full((4, 5), 2)}, "ACTIONS"),
    ],
)
def test_refuses_another_model_s_state(changes, code):
    made = pair()
    start = dict(enumerate(start_of(made.model)))
    session, untouched = open_session(made), open_session(made)
    with pytest.raises(UsageError, match=f"VIDC-SESSION-{code}"):
        session.spawn(*(start | changes).values())
    assert session.step().equal(untouched.step())


def test_frames_that_are_not_finite_end_the_session():
    made = pair()
    made.agent.upsampler.inner_model.conv_out.bias[0] = torch.nan
    player = made.player
    session = player.program(replace(player.resources, strict=True))
    with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
        session.step()
    with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
        session.step()


def test_the_oracle_s_fast_sampler_is_the_published_one():
    low, up = oracle.FAST
    assert low.sigmas().tolist() == pytest.approx([5.0, 0.0])
    model = pair().model
    assert model.denoise.sigmas == (5.0,)
    low, up = oracle.HIGHER_QUALITY
    model = pair(**HIGHER_QUALITY).model
    assert torch.allclose(low.sigmas()[:-1], torch.tensor(model.denoise.sigmas))
    assert torch.allclose(up.sigmas()[:-1], torch.tensor(model.upsample.sigmas))
