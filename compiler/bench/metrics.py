"""Metrics of a benchmark and the metrics derived from them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from vidc.compiler.bench.clock import MILLISECONDS
from vidc.compiler.bench.statistics import Summary
from vidc.runtime.programs.spec import ProgramSpec
from vidc.runtime.strict import plain

RATE = "frames/s"
Samples = dict[str, list[float]]
"""Raw samples by metric, in the order in which they were taken."""


@dataclass(frozen=True)
class Metric:
    """Metric of a benchmark.

    Attributes:
        title: description of the metric.
        unit: unit of the samples.
        judged: True if verdicts compare it. Differences and derived metrics are not compared.
        headline: label at the top of a report; empty for a metric that is not shown there.
    """

    title: str
    unit: str
    judged: bool = False
    headline: str = ""

    @property
    def tail_is_bad(self) -> bool:
        """Returns True if the largest samples are the worst; False for rates."""
        return self.unit != RATE


@dataclass(frozen=True)
class Decoding:
    """Names of a program's decoder in metrics and profiles.

    Attributes:
        name: first word of its metrics, and its phase in a profile.
        title: name in reports, such as ``VAE``.
    """

    name: str
    title: str

    @property
    def metric(self) -> str:
        """Name of the metric that has its time."""
        return f"{self.name}_ms"

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """All metrics of a program with this decoder, in order."""
        return _metrics(self.name, self.title)

    @property
    def durations(self) -> tuple[str, ...]:
        """Metrics of a block, its decoding, both, and a prompt switch."""
        return ("block_ms", self.metric, "stream_ms", "switch_ms")

    @property
    def phases(self) -> Mapping[str, str]:
        """Phases of a profile and their titles."""
        decode = self.metrics[self.metric].title
        return {"block": "a block", self.name: decode, "switch": "a prompt switch"}


@cache
def _metrics(name: str, title: str) -> dict[str, Metric]:
    block, decode = "block, steady state: denoising and clean pass", f"{title} decode of a block"
    first = "first frames of a block after its start, the clean pass before it done"
    switched = "prompt switch and the first block after it"
    start, peak = "process start to first frame", "peak memory of a process of its own"
    used = "CUDA memory in use meanwhile, of all processes"
    included = f"{title} included"
    return {
        "block_ms": Metric(block, "ms", True, "a block in steady state"),
        "latent_frame_ms": Metric("the same for each latent frame", "ms"),
        f"{name}_ms": Metric(decode, "ms", True, decode),
        "stream_ms": Metric(f"block to block, {included}", "ms", True),
        "first_frames_ms": Metric(first, "ms", True, "first frames of a block after its start"),
        "switch_ms": Metric("switch_prompt() alone", "ms", True, "prompt switch"),
        "switch_block_ms": Metric(switched, "ms", True, "prompt switch and first block"),
        "switch_extra_ms": Metric("added by a prompt switch", "ms"),
        "block_latent_fps": Metric("denoising alone, latent frames", RATE),
        "block_video_fps": Metric("denoising alone, video frames", RATE),
        f"{name}_video_fps": Metric(f"{title} alone, video frames", RATE),
        "stream_latent_fps": Metric("both together, latent frames", RATE),
        "stream_video_fps": Metric(
            "both together, video frames", RATE, False, f"video, {included}"
        ),
        "cold_start_s": Metric(start, "s", True, start),
        "peak_rss_bytes": Metric(peak, "bytes", False, "peak memory of a process"),
        "peak_cuda_bytes": Metric("peak CUDA memory that torch allocated there", "bytes"),
        "device_bytes": Metric(used, "bytes", False, "CUDA memory in use"),
        "build_s": Metric("stages of the build, one after the other", "s"),
    }


def summaries(samples: Mapping[str, list[float]], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Returns title, unit, summary and samples of each metric as plain JSON values."""
    return {
        name: {
            "title": metrics[name].title,
            "unit": metrics[name].unit,
            **plain(Summary.of(values)),
            "samples": values,
        }
        for name, values in samples.items()
    }


def derive(samples: Mapping[str, list[float]], spec: ProgramSpec, decoding: Decoding) -> Samples:
    """Returns the samples and the metrics derived from them.

    Rates count the frames of one video of a batch, in any block after the first.
    """
    latent, video = spec.latent_frames, spec.video_frames
    rates = {
        "block_latent_fps": ("block_ms", latent),
        "block_video_fps": ("block_ms", video),
        f"{decoding.name}_video_fps": (decoding.metric, video),
        "stream_latent_fps": ("stream_ms", latent),
        "stream_video_fps": ("stream_ms", video),
    }
    found = {name: list(values) for name, values in samples.items()}
    if "block_ms" in samples:
        found["latent_frame_ms"] = [ms / latent for ms in samples["block_ms"]]
    for name, (source, frames) in rates.items():
        if source in samples:
            found[name] = [frames * MILLISECONDS / ms for ms in samples[source]]
    return {name: found[name] for name in decoding.metrics if name in found}
