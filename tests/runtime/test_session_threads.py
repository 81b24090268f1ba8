"""A session is one thread's at a time, and one process's."""

import multiprocessing
import sys
import threading
from collections import Counter

import pytest
import torch
from small_stream import begun, embeds, equal, noise, played, small_bundle

from vidc.runtime import UnavailableError, UsageError, VidcError, load

TRIES, THREADS = 1000, 4
SECONDS = 20


@pytest.fixture
def hasty():
    """Threads change at almost every instruction."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def raced(calls, tries=1):
    """Each call's results and error codes, by number of the try; all begin at once."""
    barrier, found = threading.Barrier(len(calls)), [[] for _ in range(tries)]

    def work(call):
        for results in found:
            barrier.wait(SECONDS)
            try:
                results.append(call())
            except VidcError as error:
                results.append(error.code)
            barrier.wait(SECONDS)

    threads = [threading.Thread(target=work, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10 * SECONDS)
        assert not thread.is_alive()
    return found


@pytest.mark.parametrize("way", ["step", "stream"])
def test_no_two_threads_get_one_block(hasty, way):
    """1,000 tries: each block is handed out once, to one thread; all others get a code."""
    bundle = small_bundle()
    session = begun(bundle, seed=3)
    if way == "stream":
        stream = session.stream(blocks=TRIES * THREADS)
        found = raced([lambda: next(stream)] * THREADS, TRIES)
    else:
        found = raced([session.step] * THREADS, TRIES)
    alone, refused = begun(bundle, seed=3), Counter()
    for results in found:
        assert len(results) == THREADS
        frames = [result for result in results if isinstance(result, torch.Tensor)]
        refused.update(result for result in results if isinstance(result, str))
        assert frames, "each try hands out a block at least"
        expected = played(alone, len(frames))
        assert all(any(torch.equal(one, other) for other in frames) for one in expected)
    assert refused.keys() == {"VIDC-SESSION-BUSY"}
    assert refused.total() > TRIES / 10
    assert torch.equal(session.step(), alone.step())


CALLS = {
    "prompt": lambda s: s.prompt(embeds(2)),
    "switch_prompt": lambda s: s.switch_prompt(embeds(2)),
    "embeds": lambda s: s.embeds(embeds(2)),
    "step": lambda s: s.step(),
    "generate": lambda s: s.generate(noise()),
    "decode": lambda s: s.decode(torch.zeros(1, 2, 4, 2, 2)),
    "remember": lambda s: s.remember(torch.zeros(1, 2, 4, 2, 2)),
    "latents": lambda s: s.latents,
    "flush": lambda s: s.flush(),
    "fetch": lambda s: s.fetch(torch.zeros(1, dtype=torch.uint8)),
    "stream": lambda s: s.stream(blocks=1),
    "reset": lambda s: s.reset(),
    "close": lambda s: s.close(),
}


@pytest.mark.parametrize("inside", ["denoise", "vae_decode", "recache_4"])
def test_every_call_is_refused_while_another_thread_is_in_one(inside):
    bundle, expected = small_bundle(), played(begun(small_bundle(), blocks=2), 3, switch_after=0)
    session, reached, go_on = begun(bundle, blocks=2), threading.Event(), threading.Event()

    def wait():
        reached.set()
        assert go_on.wait(SECONDS)

    engine, frames = bundle.engines[inside], []
    engine.before = wait
    thread = threading.Thread(
        target=lambda: frames.extend(played(session, 3, switch_after=0)), daemon=True
    )
    thread.start()
    assert reached.wait(SECONDS)
    for name, call in CALLS.items():
        with pytest.raises(UsageError) as caught:
            call(session)
        assert caught.value.code == "VIDC-SESSION-BUSY", name
    with pytest.raises(UsageError, match="VIDC-SESSION-BUSY"):
        bundle.close()
    engine.before = lambda: None
    go_on.set()
    thread.join(SECONDS)
    assert equal(frames, expected)


INSIDE = {
    "step": lambda bundle, session: session.step(),
    "generate": lambda bundle, session: session.generate(noise()),
    "decode": lambda bundle, session: session.decode(torch.zeros(1, 2, 4, 2, 2)),
    "switch_prompt": lambda bundle, session: session.switch_prompt(embeds(2)),
    "reset": lambda bundle, session: session.reset(),
    "close": lambda bundle, session: session.close(),
    "session": lambda bundle, session: bundle.session(),
    "bundle": lambda bundle, session: bundle.close(),
}


@pytest.mark.parametrize("whose", ["own", "another"])
def test_a_call_from_inside_another_call_is_refused(whose):
    """As from a progress callback or a signal handler: it would wait for itself."""
    bundle, codes = small_bundle(), {}
    expected = [played(begun(small_bundle(), seed=seed, blocks=2), 2) for seed in (1, 2)]
    sessions = [begun(bundle, seed=seed, blocks=2) for seed in (1, 2)]
    target = sessions[whose == "another"]

    def call_all():
        bundle.engines["denoise"].before = lambda: None
        for name, call in INSIDE.items():
            with pytest.raises(UsageError) as caught:
                call(bundle, target)
            codes[name] = caught.value.code

    bundle.engines["denoise"].before = call_all
    frames = raced([lambda: [played(session, 2) for session in sessions]])[0][0]
    assert codes == dict.fromkeys(INSIDE, "VIDC-SESSION-BUSY")
    assert all(equal(*pair) for pair in zip(frames, expected, strict=True))


def test_a_bundle_that_is_closed_while_sessions_open_leaves_none_open(hasty):
    opened = []
    for _ in range(50):
        bundle = small_bundle()
        found = raced([lambda b=bundle: b.session(), lambda b=bundle: b.session(), bundle.close])
        assert {r for r in found[0] if isinstance(r, str)} <= {"VIDC-BUNDLE-CLOSED"}
        opened += [r for r in found[0] if r is not None and not isinstance(r, str)]
    for session in opened:
        with pytest.raises(UsageError, match="VIDC-SESSION-CLOSED"):
            session.step()


def test_two_sessions_in_two_threads_are_as_alone(hasty):
    bundle = small_bundle()
    alone = [played(begun(bundle, seed=seed), 12, switch_after=5) for seed in (1, 2)]
    sessions = [begun(bundle, seed=seed) for seed in (1, 2)]
    calls = [lambda s=session: played(s, 12, switch_after=5) for session in sessions]
    (found,) = raced(calls)
    for frames in alone:
        assert sum(equal(frames, other) for other in found) == 1


def test_a_thread_may_go_on_with_anothers_session():
    bundle = small_bundle()
    session, expected = begun(bundle, blocks=2), played(begun(bundle, blocks=2), 1)
    assert equal(raced([session.step])[0], expected)


def _forked(act, pipe):
    try:
        pipe.send(f"returned {act()}")
    except UnavailableError as error:
        pipe.send(error.code)


def in_child(act):
    """The code or result of an act in a forked child, which must end in time."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    child = context.Process(target=_forked, args=(act, there), daemon=True)
    child.start()
    try:
        assert here.poll(SECONDS), "the child hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_is_forked_after_use_is_refused():
    bundle = small_bundle()
    session = begun(bundle, blocks=1)
    stream = session.stream(blocks=1)
    acts = {
        "step": session.step,
        "latents": lambda: session.latents,
        "reset": session.reset,
        "stream": lambda: next(stream),
        "session": bundle.session,
        "load": lambda: load("nowhere"),
    }
    for name, act in acts.items():
        assert in_child(act) == "VIDC-SESSION-FORK", name
    for close in (session.close, bundle.close):
        assert in_child(close) == "returned None"
    alone = begun(bundle, blocks=1)
    assert torch.equal(session.step(), alone.step())
