"""Figures of bundles in turns: verdicts stand where medians compare."""

import bundles

from vidc.compiler.bench.metrics import Decoding

METRICS = Decoding("vae", "VAE").metrics
BLOCKS = [float(ms) for ms in range(100, 110)]


def test_a_stream_is_judged_against_the_first_bundle():
    found = {"bf16": {"block_ms": BLOCKS}, "fp8": {"block_ms": [ms / 2 for ms in BLOCKS]}}
    made = bundles.compared(found, METRICS, "bf16")
    assert made["fp8"]["block_ms"]["against first"]["verdict"] == "faster"
    assert made["fp8"]["block_ms"]["against first"]["speedup"] == 2
    assert made["bf16"]["block_ms"]["against first"]["verdict"] == "same"
    assert made["fp8"]["block_ms"]["samples"] == found["fp8"]["block_ms"]


def test_rates_and_what_the_first_bundle_lacks_are_not_judged():
    found = {
        "bf16": {"block_ms": BLOCKS, "block_video_fps": [30.0]},
        "fp8": {"block_video_fps": [40.0], "cold_start_s": [5.0]},
    }
    made = bundles.compared(found, METRICS, "bf16")
    assert made["fp8"]["block_video_fps"]["median"] == 40
    assert all("against first" not in figures for figures in made["fp8"].values())
