"""Metrics of a benchmark and the metrics derived from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vidc.compiler.bench.clock import MILLISECONDS
from vidc.compiler.bench.statistics import Summary
from vidc.runtime.programs.stream import StreamSpec

RATE = "frames/s"
Samples = dict[str, list[float]]
"""Raw samples by metric, in the order in which they were taken."""


@dataclass(frozen=True)
class Metric:
    """A figure.

    Attributes:
        title: description of the metric.
        unit: unit of the samples.
        judged: whether two sets of samples are compared by it. Differences and what follows from
            another figure are not.
    """

    title: str
    unit: str
    judged: bool = False

    @property
    def tail_is_bad(self) -> bool:
        """Returns True if the largest samples are the worst; False for rates."""
        return self.unit != RATE


METRICS = {
    "block_ms": Metric("block, steady state: denoising and clean pass", "ms", judged=True),
    "latent_frame_ms": Metric("the same for each latent frame", "ms"),
    "vae_ms": Metric("VAE decode of a block", "ms", judged=True),
    "stream_ms": Metric("block to block, VAE included", "ms", judged=True),
    "switch_ms": Metric("prompt switch alone", "ms", judged=True),
    "switch_block_ms": Metric("prompt switch and the first block after it", "ms", judged=True),
    "switch_extra_ms": Metric("the same less the block before the switch", "ms"),
    "block_latent_fps": Metric("denoising alone, latent frames", RATE),
    "block_video_fps": Metric("denoising alone, video frames", RATE),
    "vae_video_fps": Metric("VAE alone, video frames", RATE),
    "stream_latent_fps": Metric("both together, latent frames", RATE),
    "stream_video_fps": Metric("both together, video frames", RATE),
    "cold_start_s": Metric("process start to first frame", "s", judged=True),
    "peak_rss_bytes": Metric("peak memory of a process of its own", "bytes"),
    "peak_cuda_bytes": Metric("peak CUDA memory that torch allocated there", "bytes"),
    "device_bytes": Metric("CUDA memory in use meanwhile, of all processes", "bytes"),
    "build_s": Metric("stages of the build, one after the other", "s"),
}


def summaries(samples: Mapping[str, list[float]]) -> dict[str, Any]:
    """Returns title, unit, summary and samples of each metric as plain JSON values."""
    return {
        name: {
            "title": METRICS[name].title,
            "unit": METRICS[name].unit,
            **Summary.of(values).to_json(),
            "samples": values,
        }
        for name, values in samples.items()
    }


def derive(samples: Mapping[str, list[float]], stream: StreamSpec) -> Samples:
    """Returns the samples and the metrics derived from them.

    Frames count for each video of a batch. Video frames are those of any block but the first.
    """
    latent = stream.block
    video = 4 * stream.block
    rates = {
        "block_latent_fps": ("block_ms", latent),
        "block_video_fps": ("block_ms", video),
        "vae_video_fps": ("vae_ms", video),
        "stream_latent_fps": ("stream_ms", latent),
        "stream_video_fps": ("stream_ms", video),
    }
    found = {name: list(values) for name, values in samples.items()}
    if "block_ms" in samples:
        found["latent_frame_ms"] = [ms / latent for ms in samples["block_ms"]]
    for name, (source, frames) in rates.items():
        if source in samples:
            found[name] = [frames * MILLISECONDS / ms for ms in samples[source]]
    return {name: found[name] for name in METRICS if name in found}
