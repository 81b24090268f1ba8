from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.exporters.components import component_groups
from vidc.exporters.config import (
    ModelConfig,
    SamplerConfig,
    StreamConfig,
    TransformerConfig,
    VaeConfig,
)
from vidc.runtime.manifest import Manifest


def test_a_stream_without_a_sink_is_allowed(manifest: Manifest) -> None:
    assert replace(manifest.spec, sink=0).sink == 0


def test_nan_is_no_timestep(manifest: Manifest) -> None:
    with pytest.raises(ValueError, match="sigmas"):
        replace(manifest.spec, sigmas=(1.0, float("nan")))


@given(st.integers(1, 8), st.integers(0, 8), st.integers(0, 40))
def test_recaches_are_those_that_were_exported(
    manifest: Manifest, block: int, sink: int, more: int
) -> None:
    window = sink + block + more
    stream = replace(manifest.spec, window=window, sink=sink, block=block)
    model = ModelConfig(
        TransformerConfig(dim=48, ffn_dim=64, heads=2, layers=1),
        VaeConfig(),
        StreamConfig(height=16, width=32, window=window, sink=sink, block=block),
        SamplerConfig(),
    )
    assert stream.recache_frames == model.recache_frames
    assert {*stream.components} < {*component_groups(model)}
