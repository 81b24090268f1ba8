from dataclasses import replace

import pytest
import torch

from vidc.compiler.inspect.bundle import Total, summarize_bundle
from vidc.plugins.errors import GateError
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import read_manifest, write_manifest
from vidc.runtime.record import RECORD_NAME, Record
from vidc.runtime.states import States


@pytest.fixture
def summary(make_bundle):
    bundle = make_bundle()
    return summarize_bundle(bundle, read_manifest(bundle))


def test_engines_are_counted_in_tensors_and_bytes(summary):
    denoise, kv_update = summary.engines
    assert (denoise.component, denoise.files) == ("denoise", {"denoise.onnx": 5})
    elements = 3 * 4 * 2 * 4
    assert denoise.inputs == Total(1, 2 * elements)
    assert denoise.outputs == Total(1, 4 * elements)
    assert denoise.states == kv_update.states == Total(1, 4 * 32 * 2 * 8)


def test_session_memory_equals_allocated_states(make_bundle, summary):
    manifest = read_manifest(make_bundle("again"))
    states = States((e.signature for e in manifest.engines.values()), torch.device("cpu"))
    assert summary.session.states == Total(1, states["ring.k.0"].nbytes)
    assert summary.session.spares == Total(1, states.spare("ring.k.0").nbytes)


def test_a_state_written_in_place_needs_no_spare(make_bundle):
    manifest = read_manifest(make_bundle("both"))
    bundle = make_bundle(engines={"kv_update": manifest.engines["kv_update"]})
    session = summarize_bundle(bundle, read_manifest(bundle)).session
    assert (session.states.count, session.spares) == (1, Total(0, 0))


def test_weights_are_counted_from_their_header(summary):
    weights = summary.weights["transformer"]
    assert (weights.tensors, weights.elements) == (2, 10)
    assert weights.dtypes == {"F32": 1, "BF16": 1}
    assert weights.source == {"random_weights": 7}


def test_bytes_cover_all_files(make_bundle, summary):
    files = [f for f in make_bundle("again").rglob("*") if f.is_file()]
    assert summary.bytes == sum(f.stat().st_size for f in files if f.name != "manifest.json")


def test_weights_that_are_no_safetensors_are_malformed(make_bundle):
    bundle = make_bundle()
    manifest = read_manifest(bundle)
    (bundle / "weights/transformer.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(GateError, match="VIDC-BUNDLE-MALFORMED"):
        summarize_bundle(bundle, manifest)


def test_says_if_the_manifest_is_the_validated_one(vidc, make_bundle):
    bundle = make_bundle()
    manifest = read_manifest(bundle)
    assert "lists no validated.json" in summarize_bundle(bundle, manifest).record_error
    Record.of(manifest).write(bundle)
    files = {**manifest.files, RECORD_NAME: file_entry(bundle / RECORD_NAME)}
    recorded = replace(manifest, files=files)
    write_manifest(recorded, bundle)
    assert summarize_bundle(bundle, read_manifest(bundle)).record_error is None
    assert "matches the manifest" in vidc("inspect", str(bundle))[1]
    write_manifest(replace(recorded, preset="another"), bundle)
    status, out, _ = vidc("inspect", str(bundle))
    assert (status, "DOES NOT MATCH" in out, "preset changed" in out) == (0, True, True)
