"""A session after a fault of an engine: a block is tried again, anything else needs a reset."""

import gc
import weakref

import pytest
import torch
from small_stream import begun, embeds, equal, noise, played, small_bundle

from vidc.runtime import GateError, UsageError

LATENT = torch.zeros(1, 2, 4, 2, 2)


class PlantedError(RuntimeError):
    pass


def plant(engine, error, when):
    """Makes an engine fail once, before it runs or after it has written."""

    def fail(*_):
        setattr(engine, when, lambda *_: None)
        raise error

    setattr(engine, when, fail)


BLOCKS = {
    "step": ("denoise", lambda s: s.step()),
    "noise": ("denoise", lambda s: s.step(noise())),
    "generate": ("kv_update", lambda s: s.generate()),
    "stream": ("kv_update", lambda s: next(s.stream(blocks=1))),
    "remember": ("kv_update", lambda s: s.remember(LATENT)),
    "flush": ("kv_update", lambda s: s.flush()),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_is_tried_again_bitwise(block, when):
    component, call = BLOCKS[block]
    bundle = small_bundle()
    expected, session = begun(bundle, blocks=3), begun(bundle, blocks=3)
    wanted = call(expected)
    plant(bundle.engines[component], PlantedError("planted"), when)
    with pytest.raises(PlantedError):
        call(session)
    result = call(session)
    assert result is wanted is None or torch.equal(result, wanted)
    assert session.blocks == expected.blocks
    assert equal(played(session, 4, switch_after=1), played(expected, 4, switch_after=1))


CALLS = {
    "step": lambda s: s.step(),
    "stream": lambda s: next(s.stream(blocks=1)),
    "generate": lambda s: s.generate(),
    "decode": lambda s: s.decode(LATENT),
    "prompt": lambda s: s.prompt(embeds()),
    "switch_prompt": lambda s: s.switch_prompt(embeds()),
    "remember": lambda s: s.remember(LATENT),
    "latents": lambda s: s.latents,
    "flush": lambda s: s.flush(),
}
STOP = KeyboardInterrupt
ENDS = {
    "switch": ("text_kv", "the prompt switch", lambda s: s.switch_prompt(embeds(2)), PlantedError),
    "recache": (
        "recache_4",
        "the prompt switch",
        lambda s: s.switch_prompt(embeds(2)),
        PlantedError,
    ),
    "prompt": ("text_kv", "the prompt", lambda s: s.prompt(embeds(2)), PlantedError),
    "pending": ("kv_update", "the prompt", lambda s: s.prompt(embeds(2)), PlantedError),
    "decode": ("vae_decode", "decoding", lambda s: s.decode(LATENT), PlantedError),
    "step": ("vae_decode", "decoding", lambda s: s.step(), PlantedError),
    "interrupt": ("denoise", "step", lambda s: s.step(), STOP),
    "stop": ("kv_update", "stream", lambda s: next(s.stream(blocks=1)), STOP),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("end", ENDS)
def test_a_session_that_failed_midway_needs_a_reset(end, when):
    component, work, call, kind = ENDS[end]
    bundle = small_bundle()
    expected, session = played(begun(bundle, seed=5)), begun(bundle, blocks=2)
    plant(bundle.engines[component], kind("planted"), when)
    with pytest.raises(kind, match="planted"):
        call(session)
    for name, refused in CALLS.items():
        with pytest.raises(UsageError) as caught:
            refused(session)
        assert caught.value.code == "VIDC-SESSION-FAILED", name
        assert f"{work} failed midway" in caught.value.message
        assert f"{kind.__name__}: planted" in caught.value.message
    session.reset(seed=5)
    session.prompt(embeds())
    assert equal(played(session), expected)


def test_a_failed_session_can_be_closed_and_keeps_nothing():
    bundle = small_bundle()
    session = begun(bundle, blocks=1)
    plant(bundle.engines["vae_decode"], PlantedError("planted"), "after")
    with pytest.raises(PlantedError):
        session.step()
    history = weakref.ref(session._history)
    session.close()
    gc.collect()
    assert history() is None


VALUES = (torch.nan, torch.inf, -torch.inf)


def spoil(engine, name, value):
    """Puts a value into a tensor that an engine writes."""

    def write(buffers, states):
        (states if name in ("ring.k.0", "text.k.0") else buffers)[name].view(-1)[0] = value

    engine.after = write


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    ("component", "tensor"),
    [("denoise", "flow"), ("kv_update", "ring.k.0"), ("vae_decode", "frames")],
)
def test_values_that_are_not_finite_end_a_session(component, tensor, value):
    bundle = small_bundle()
    expected, session = played(begun(bundle, seed=5)), begun(bundle, blocks=3)
    spoil(bundle.engines[component], tensor, value)
    with pytest.raises(GateError, match="VIDC-SESSION-NOT-FINITE"):
        session.step()
    bundle.engines[component].after = lambda *_: None
    for name, refused in CALLS.items():
        with pytest.raises(GateError) as caught:
            refused(session)
        assert caught.value.code == "VIDC-SESSION-NOT-FINITE", name
    session.reset(seed=5)
    session.prompt(embeds())
    assert equal(played(session), expected)


def test_a_text_encoder_that_is_not_finite_ends_a_session():
    session = small_bundle(shared=lambda text: embeds() * torch.nan).session()
    session.prompt("a fox")
    with pytest.raises(GateError, match=r"VIDC-SESSION-NOT-FINITE"):
        session.step()
