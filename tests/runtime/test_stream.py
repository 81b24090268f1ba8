from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.config.program import program_spec
from vidc.exporters.families.causal_video import CausalVideo, SamplerConfig, StreamConfig
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.plugins.signature import Rounding, Signature
from vidc.runtime.manifest import Manifest
from vidc.runtime.programs.stream import StreamSpec


def test_a_stream_without_a_sink_is_allowed(manifest: Manifest) -> None:
    assert replace(manifest.spec, sink=0).sink == 0


def test_refuses_nan_as_a_timestep(manifest: Manifest) -> None:
    with pytest.raises(ValueError, match="sigmas"):
        replace(manifest.spec, sigmas=(1.0, float("nan")))


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 40))
def test_recaches_are_those_that_were_exported(
    manifest: Manifest, block: int, sink: int, more: int
) -> None:
    window = sink + block + more
    stream = replace(manifest.spec, window=window, sink=sink, block=block)
    model = CausalVideo(
        TransformerConfig(dim=48, ffn_dim=64, heads=2, layers=1),
        VaeConfig(),
        StreamConfig(height=16, width=32, window=window, sink=sink, block=block),
        SamplerConfig(),
    )
    assert stream.recache_frames == model.transformer_part.recache_frames
    assert {*stream.components} < {*model.components}


@pytest.fixture(scope="module")
def stream_signatures() -> tuple[StreamSpec, dict[str, Signature]]:
    """The spec and the components of a small stream."""
    model = CausalVideo(
        TransformerConfig(dim=48, ffn_dim=64, heads=2, layers=2, text_len=8, text_dim=16),
        VaeConfig(),
        StreamConfig(height=16, width=32, window=6, sink=3, block=3),
        SamplerConfig(),
    )
    found = {}
    for part in model.parts.values():
        components = part.components(part.network("fp32"))
        found |= {name: component.signature for name, component in components.items()}
    return program_spec(model), found


def test_a_streams_components_have_the_sizes_of_its_spec(stream_signatures) -> None:
    spec, signatures = stream_signatures
    spec.check(signatures)


@pytest.mark.parametrize(
    "change",
    [
        {"grid": (2, 1)},
        {"grid": (1, 1), "frame_tokens": 1},
        {"head_dim": 26},
        {"window": 9},
        {"block": 1},
        {"latent": (16, 2, 8)},
        {"latent": (8, 2, 4)},
        {"video": (16, 40)},
        {"text": (9, 16)},
        {"text": (8, 8)},
        {"batch": 2},
    ],
)
def test_refuses_other_sizes_than_the_engines(stream_signatures, change) -> None:
    spec, signatures = stream_signatures
    with pytest.raises(ValueError, match=r"and the spec's sizes give|does not divide"):
        replace(spec, **change).check(signatures)


def test_refuses_a_component_with_other_tensors(stream_signatures) -> None:
    spec, signatures = stream_signatures
    renamed = [replace(t, name="t") if t.name == "timestep" else t for t in signatures["denoise"]]
    for tensors in (signatures["denoise"].tensors[1:], tuple(renamed)):
        with pytest.raises(ValueError, match="denoise has tensors"):
            spec.check({**signatures, "denoise": Signature(tensors)})


def test_reads_the_axes_of_a_state_that_an_engine_reorders(stream_signatures) -> None:
    spec, signatures = stream_signatures
    turned = [
        t.rearranged((0, 2, 1, 3)) if t.name == "ring.k.0" else t for t in signatures["kv_update"]
    ]
    spec.check({**signatures, "kv_update": Signature(tuple(turned))})


@pytest.mark.parametrize(("padding", "fits"), [(4, True), (3, False)])
def test_reads_the_slots_of_a_padded_ring(stream_signatures, padding, fits) -> None:
    spec, signatures = stream_signatures
    (ring,) = (t for t in signatures["kv_update"] if t.name == "ring.v.0")
    batch, slots, *row = ring.shape
    rounding = Rounding("scale", reordered=True, padding=padding)
    stored = replace(ring, shape=(batch, slots + 4, *row), dtype="int8", rounding=rounding)
    stored = stored.rearranged((0, 2, 3, 1))
    others = [t for t in signatures["kv_update"] if t is not ring]
    padded = {**signatures, "kv_update": Signature((*others, stored))}
    if fits:
        spec.check(padded)
    else:
        with pytest.raises(ValueError, match=r"ring\.v\.0 of kv_update .* spec's sizes give"):
            spec.check(padded)
