"""A result as a run would give it, without a run."""

import numpy as np
import pytest

from vidc.compiler.bench.metrics import Decoding, derive
from vidc.compiler.bench.record import Result, against_baselines
from vidc.runtime.programs.stream import StreamSpec

SPEC = StreamSpec(
    batch=1, block=3, window=12, sink=3, frame_tokens=6, grid=(2, 3), latent=(16, 4, 6),
    video=(32, 48), head_dim=24, text=(5, 8), timesteps=(1000.0, 500.0), sigmas=(1.0, 0.5),
    context_timestep=0.0, pending="kv_update",
)  # fmt: skip


DECODING = Decoding("vae", "VAE")


@pytest.fixture
def decoding() -> Decoding:
    return DECODING


@pytest.fixture
def spec() -> StreamSpec:
    return SPEC


def drawn(center, n=100, spread=0.01, seed=0):
    return list(center * np.random.default_rng(seed).lognormal(sigma=spread, size=n))


def make_streams(slower=1.0, n=100):
    streams = {}
    for seed, (name, factor) in enumerate({"vidc": slower, "eager": 1.5}.items()):
        measured = {
            "block_ms": drawn(270 * factor, n, seed=seed),
            "vae_ms": drawn(150 * factor, n, seed=seed + 10),
            "stream_ms": drawn(420 * factor, n, seed=seed + 20),
            "switch_ms": drawn(150 * factor, n, seed=seed + 30),
            "switch_block_ms": drawn(420 * factor, n, seed=seed + 40),
            "switch_extra_ms": [-1.0, 1.0] * (n // 2),
        }
        streams[name] = derive(measured, SPEC, DECODING) | {
            "cold_start_s": [9.5, 9.0, 9.2],
            "peak_rss_bytes": [2e9] * 3,
        }
    return streams


@pytest.fixture
def make_result():
    def make(slower=1.0, n=100, **changes):
        streams = make_streams(slower, n)
        return Result(
            **{
                "bundle": "tiny-cpu-fp32",
                "decoding": DECODING,
                "workload": {"preset": "tiny", "window": 12, "timesteps": [1000.0, 500.0]},
                "protocol": {"warmup": 20, "samples": n, "seed": 0, "cold_starts": 3},
                "fingerprint": {
                    "machine": {"cpu": "a CPU", "cores": 4, "gpu": None},
                    "software": {"torch": "2.13.0", "packages": {"vidc": "0.1.0", "onnx": None}},
                    "bundle": "ab" * 32,
                    "hash": "cd" * 32,
                },
                "streams": streams,
                "judgments": tuple(against_baselines(streams, DECODING.metrics)),
                "steps": ({"imported": 1.5, "framed": 9.5},),
                "disturbance": 0.01,
                "notes": ("a note",),
            }
            | changes
        )

    return make
