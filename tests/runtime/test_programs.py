"""A program that is no video: what the base does for it, on a CPU."""

import weakref
from dataclasses import dataclass

import pytest
import torch

from vidc.plugins.errors import UsageError
from vidc.plugins.signature import Access, Role, Signature, TensorSpec
from vidc.runtime import Bundle, Session
from vidc.runtime.graphs import Runner, Runners
from vidc.runtime.program import PROGRAMS, SPECS, program, spec_class
from vidc.runtime.programs.base import Resources
from vidc.runtime.programs.spec import ProgramSpec

CPU = torch.device("cpu")


@dataclass(frozen=True)
class CounterSpec(ProgramSpec):
    stride: int

    @property
    def components(self):
        return ("add",)


class Add:
    """Adds its input to a state that comes back in a second buffer."""

    signature = Signature(
        (
            TensorSpec("step", (1,), "int64", Role.INPUT),
            TensorSpec("count", (1,), "int64", Role.STATE, Access.READ_WRITE),
            TensorSpec("seen", (1,), "int64", Role.OUTPUT),
        )
    )

    def run(self, buffers, states):
        states.spare("count").copy_(states["count"] + buffers["step"])
        buffers["seen"].copy_(states.spare("count"))
        states.flip(["count"])

    def weight(self, name):
        raise KeyError(name)


class Counter(Session[CounterSpec]):
    Spec = CounterSpec

    def _allocate(self, device):
        self._start = torch.zeros(1, dtype=torch.int64, device=device)

    def _capture(self, runners):
        (self._add,) = runners["counts"].prepare([lambda: self._run("add")])

    def _clear(self):
        super()._clear()
        self._start.fill_(self.seed)

    def step(self):
        with self._turn("counts"):
            self._buffers["add"].set({"step": self.spec.stride})
            self._add()
            return self._start + self._buffers["add"]["seen"]


class Recorded(Runner):
    """Keeps the order of what is asked of it."""

    def __init__(self, calls):
        self.calls = calls

    def prepare(self, works, warm_up=None):
        self.calls.append("prepare")
        for work in works if warm_up is None else warm_up:
            work()  # As a GPU's first use does, which leaves states that are not new.
        return super().prepare(works)


@pytest.fixture
def calls():
    return []


@pytest.fixture
def bundle(calls):
    runners = Runners(lambda: Recorded(calls))
    return Bundle(Counter, Resources(CounterSpec(stride=3), {"add": Add()}, CPU, runners))


def counts(session, steps=3):
    return [int(seen) for seen in session.stream(steps)]


def test_sessions_have_separate_states(bundle):
    first, second = bundle.session(), bundle.session(seed=100)
    assert counts(first) == [3, 6, 9]
    assert counts(second) == [103, 106, 109]
    assert counts(first, 1) == [12]


def test_reset_captures_and_allocates_nothing(bundle, calls, monkeypatch):
    session = bundle.session()
    counts(session, 2)
    assert calls == ["prepare"]
    monkeypatch.setattr(torch, "zeros", None)
    session.reset(seed=50)
    assert counts(session) == [53, 56, 59]
    session.reset()
    assert counts(session) == [3, 6, 9]
    assert calls == ["prepare"]


def test_a_closed_session_refuses_everything(bundle):
    with bundle.session() as session:
        counts(session)
    for use in (session.step, session.reset, lambda: session.seed, lambda: session.spec):
        with pytest.raises(UsageError, match="VIDC-SESSION-CLOSED"):
            use()
    session.close()


def test_an_open_session_has_no_unknown_attributes(bundle):
    with pytest.raises(AttributeError, match="'Counter' object has no attribute 'window'"):
        bundle.session().window  # noqa: B018


def test_a_program_without_prompts_refuses_them(bundle):
    session = bundle.session()
    for use in (session.prompt, session.switch_prompt):
        with pytest.raises(UsageError, match="VIDC-PROMPT-UNUSED"):
            use("a fox")


def test_a_closed_bundle_closes_its_sessions(bundle):
    with bundle:
        session = bundle.session()
    with pytest.raises(UsageError, match="VIDC-SESSION-CLOSED"):
        session.step()
    for use in (bundle.session, lambda: bundle.engines, bundle.working_bytes):
        with pytest.raises(UsageError, match="VIDC-BUNDLE-CLOSED"):
            use()
    bundle.close()


def test_close_frees_buffers_at_once(bundle):
    session = bundle.session()
    buffer = weakref.ref(session._start)
    session.close()
    assert buffer() is None


def test_a_bundle_does_not_keep_sessions_alive(bundle):
    session = bundle.session()
    kept = weakref.ref(session)
    session._add = None  # Ends the circle through the prepared work.
    del session
    assert kept() is None


class Ordered(Runner):
    """A runner with a name, which tells who waits for whom."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def follow(self, other):
        self.calls.append(f"{self.name} waits for {other.name}")


def test_turn_of_all_runners_orders_work():
    calls, names = [], iter("ab")
    runners = Runners(lambda: Ordered(next(names), calls))
    assert runners["x"] is runners["x"]
    assert runners["y"].name == "b"
    with runners.turn():
        calls.append("work")
    assert calls == ["a waits for b", "work", "b waits for a"]


def test_specs_are_found_without_their_sessions():
    assert PROGRAMS.keys() == SPECS.keys()
    for name in PROGRAMS:
        assert program(name).Spec is spec_class(name)
