"""The clean pass that a block leaves pending: when it runs, and that no result depends on that."""

from dataclasses import replace

import pytest
import torch
from small_stream import SPEC, begun, embeds, equal, noise, small_bundle

from vidc.plugins.errors import UsageError

LATENT = torch.full((1, 2, 4, 2, 2), 0.3)
BLOCK = ["denoise"] * len(SPEC.timesteps)


class PlantedError(RuntimeError):
    pass


@pytest.fixture
def logged():
    """A session after three blocks, and the components that its later calls run."""
    bundle, log = small_bundle(), []
    session = begun(bundle, blocks=3)
    for name, engine in bundle.engines.items():
        engine.before = lambda name=name: log.append(name)
    return session, log


def rolled(switch_after, flush, blocks=8):
    """Frames and latents of a stream with a switch; with ``flush``, no pass stays pending."""
    session, results = begun(small_bundle(), seed=3), []
    for block in range(blocks):
        if block == switch_after:
            session.switch_prompt(embeds(2))
        results += [session.step(), session.latents]
        if flush:
            session.flush()
    return results


def test_a_block_returns_before_its_clean_pass_and_the_next_one_begins_with_it(logged):
    session, log = logged
    session.generate()
    session.generate()
    assert log == ["kv_update", *BLOCK] * 2


@pytest.mark.parametrize("switch_after", [None, *range(1, 8)])
def test_results_are_those_of_a_pass_at_the_end_of_each_block(switch_after):
    assert equal(rolled(switch_after, flush=False), rolled(switch_after, flush=True))


def test_the_pass_matters():
    session = begun(small_bundle(), blocks=3)
    expected = begun(small_bundle(), blocks=3).step()
    session._pending = False
    assert not torch.equal(session.step(), expected)


def test_a_switch_takes_the_place_of_the_pass(logged):
    session, log = logged
    session.switch_prompt(embeds(2))
    session.generate()
    assert log == ["text_kv", "recache_4", *BLOCK]


def test_a_switch_after_one_block_runs_its_pass_once_under_the_new_prompt():
    bundle, log = small_bundle(), []
    session = begun(bundle, blocks=1)
    for name, engine in bundle.engines.items():
        engine.before = lambda name=name: log.append(name)
    session.switch_prompt(embeds(2))
    session.generate()
    assert log == ["text_kv", "kv_update", *BLOCK]


def test_reset_drops_the_pass(logged):
    session, log = logged
    session.reset(seed=1)
    session.prompt(embeds())
    session.generate()
    assert log == ["text_kv", *BLOCK]


def test_flush_runs_the_pass_once(logged):
    session, log = logged
    session.flush()
    session.flush()
    assert log == ["kv_update"]
    session.generate()
    assert log == ["kv_update", *BLOCK]


def test_a_new_first_prompt_does_not_reach_the_block_before(logged):
    session, log = logged
    flushed = begun(small_bundle(), blocks=3)
    flushed.flush()
    for one in (session, flushed):
        one.prompt(embeds(2))
    assert log == ["kv_update", "text_kv"]
    assert torch.equal(session.step(), flushed.step())


def test_a_remembered_block_leaves_its_pass_as_well(logged):
    session, log = logged
    session.remember(LATENT)
    assert log == ["kv_update"]
    session.generate()
    assert log == ["kv_update"] * 2 + BLOCK


def test_the_first_prompt_after_a_remembered_block_computes_its_keys_and_values():
    prompted, switched = small_bundle().session(), small_bundle().session()
    for session in (prompted, switched):
        session.remember(LATENT)
    prompted.prompt(embeds(2))
    switched.switch_prompt(embeds(2))
    assert torch.equal(prompted.step(noise()), switched.step(noise()))


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("switched", [False, True])
def test_a_stream_goes_on_from_a_forced_block_as_from_a_remembered_one(flushed, switched):
    forced, remembered = begun(small_bundle(), blocks=3), begun(small_bundle(), blocks=3)
    forced.generate(noise())
    if flushed:
        forced.flush()
    forced.force(LATENT)
    remembered.remember(LATENT)
    if switched:
        for session in (forced, remembered):
            session.switch_prompt(embeds(2))
    assert torch.equal(forced.latents, LATENT)
    assert torch.equal(forced.generate(noise(7)), remembered.generate(noise(7)))


def test_a_stream_without_a_block_has_none_to_force():
    with pytest.raises(UsageError, match="VIDC-SESSION-NO-BLOCK"):
        begun(small_bundle()).force(LATENT)


@pytest.mark.parametrize("call", [lambda s: s.remember(LATENT), lambda s: s.flush()])
def test_a_pass_without_a_prompt_is_refused(call):
    session = small_bundle().session()
    session.remember(LATENT)
    with pytest.raises(UsageError, match="VIDC-SESSION-NO-PROMPT"):
        call(session)


def test_a_failed_pass_is_a_failure_of_the_next_block_alone():
    bundle = small_bundle()
    session, expected = begun(bundle, blocks=3), begun(small_bundle(), blocks=3)

    def fail():
        raise PlantedError

    bundle.engines["kv_update"].before = fail
    for call in (session.step, session.flush, session.step):
        with pytest.raises(PlantedError):
            call()
    assert torch.equal(session.latents, expected.latents)
    bundle.engines["kv_update"].before = lambda: None
    assert torch.equal(session.step(noise()), expected.step(noise()))


def fail_once(session):
    """Fails a block after its first denoising step."""
    engine = session._resources.engines["denoise"]

    def fail(buffers, states):
        engine.after = lambda buffers, states: None
        raise PlantedError

    engine.after = fail
    with pytest.raises(PlantedError):
        session.generate()


def test_a_repeated_block_does_not_repeat_the_pass(logged):
    """The failed attempt has overwritten frames that the pass read: the ring has wrapped."""
    session, log = logged
    expected = begun(small_bundle(), blocks=3)
    fail_once(session)
    assert torch.equal(session.generate(), expected.generate())
    assert log == ["kv_update", "denoise", *BLOCK]


def test_force_after_a_failed_block_waits_for_its_repetition(logged):
    """The pass of the forced block would attend to the failed block's noise."""
    session, _ = logged
    expected = begun(small_bundle(), blocks=3)
    fail_once(session)
    with pytest.raises(UsageError, match="VIDC-SESSION-UNFINISHED"):
        session.force(LATENT)
    for one in (session, expected):
        one.generate()
        one.force(LATENT)
    assert torch.equal(session.generate(), expected.generate())


def test_a_spec_names_the_pending_pass():
    assert SPEC.pending == "kv_update"
    assert SPEC.calls["block"] == {"kv_update": 1, "denoise": len(SPEC.timesteps)}
    with pytest.raises(ValueError, match="pending = 'denoise', expected 'kv_update'"):
        replace(SPEC, pending="denoise")
