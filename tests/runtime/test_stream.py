from dataclasses import replace

import pytest

from vidc.runtime.manifest import Manifest


def test_sizes_in_tokens(manifest: Manifest) -> None:
    stream = replace(manifest.stream, window=12, sink=3, block=4, frame_tokens=6, grid=(2, 3))
    assert (stream.window_tokens, stream.sink_tokens, stream.block_tokens) == (72, 18, 24)


def test_a_stream_without_a_sink_is_allowed(manifest: Manifest) -> None:
    assert replace(manifest.stream, sink=0).sink_tokens == 0


def test_nan_is_no_timestep(manifest: Manifest) -> None:
    with pytest.raises(ValueError, match="sigmas"):
        replace(manifest.stream, sigmas=(1.0, float("nan")))
