from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import Signature
from vidc.runtime.memory import CONTEXT_BYTES, need, require_memory

CUDA = torch.device("cuda", 0)
LATENT = 3 * 4 * 2 * 4 * 4
RING = 32 * 2 * 8 * 4
WEIGHTS = 2**20 + 1
WORKING = 5 * 10**6
RING_FRAME = 10**6 * 2 * 8 * 4
"""Bytes of a latent frame in the largest ring."""


@pytest.fixture(scope="module")
def measured(manifest):
    validation = replace(manifest.validation, working_bytes=WORKING)
    return replace(manifest, validation=validation, spec=replace(manifest.spec, window=8))


def pretend_free(monkeypatch, free, cached=0):
    found = [free]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (found[0], 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.__setitem__(0, free + cached))


def test_memory_need_is_the_sum_of_its_parts(measured):
    found = need(measured)
    assert (found.weights, found.session, found.working) == (WEIGHTS, 2 * LATENT + RING, WORKING)
    assert found.total == CONTEXT_BYTES + WEIGHTS + 2 * LATENT + RING + WORKING


def test_accepts_exactly_enough_memory_and_refuses_a_byte_less(measured, monkeypatch):
    # The context is there when the device is asked.
    enough = need(measured).total - CONTEXT_BYTES
    pretend_free(monkeypatch, enough)
    require_memory(measured, CUDA)
    pretend_free(monkeypatch, enough - 1)
    with pytest.raises(UnavailableError, match="VIDC-GPU-MEMORY") as caught:
        require_memory(measured, CUDA)
    assert "needs 0.7 GB (weights 0.0, a session 0.0, working memory 0.0" in caught.value.message


def test_memory_cached_by_torch_counts_as_free(measured, monkeypatch):
    enough = need(measured).total - CONTEXT_BYTES
    pretend_free(monkeypatch, enough - 1000, cached=1000)
    require_memory(measured, CUDA)


@given(window=st.sampled_from([9, 12, 15, 30]), fits=st.integers(0, 30))
def test_the_hint_names_the_largest_window_that_fits(manifest, window, fits):
    spec = replace(manifest.spec, window=window)
    large = tuple(
        replace(t, shape=(1, 10**6 * window, 2, 8)) if t.name == "ring.k.0" else t
        for t in manifest.engines["denoise"].signature
    )
    engine = replace(manifest.engines["denoise"], signature=Signature(large))
    document = replace(manifest, spec=spec, engines={"denoise": engine})
    found = need(document)
    with pytest.MonkeyPatch.context() as patch:
        free = found.total - CONTEXT_BYTES - (window - fits) * RING_FRAME
        pretend_free(patch, free)
        if fits >= window:
            require_memory(document, CUDA)
            return
        with pytest.raises(UnavailableError) as caught:
            require_memory(document, CUDA)
    possible = [w for w in range(spec.sink + spec.block, window, spec.block) if w <= fits]
    if possible:
        assert f"--set stream.window={max(possible)} would fit" in caught.value.hint
    else:
        assert "no smaller window would fit" in caught.value.hint
