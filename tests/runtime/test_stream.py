from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.exporters.families.causal_video import CausalVideo, SamplerConfig, StreamConfig
from vidc.exporters.parts.causal_wan.config import TransformerConfig
from vidc.exporters.parts.wan_vae.config import VaeConfig
from vidc.runtime.manifest import Manifest


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
