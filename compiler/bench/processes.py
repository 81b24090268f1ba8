"""Cold starts and peak memory, each measured in a process of its own.

    python -m vidc.compiler.bench.child BUNDLE STREAM SEED [DECODER]

The process prints one JSON document: ``seconds`` on the monotonic clock, which all processes share,
at the end of each step, and ``peak`` memory after a full window and a prompt switch.
"""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from vidc.compiler.bench.metrics import Samples
from vidc.compiler.bench.streams import (
    OURS,
    load_bundle,
    of_baselines,
    of_bundle,
    read_bundle,
)
from vidc.compiler.bench.usage import peak_rss_bytes
from vidc.compiler.validate.golden import read_prompts
from vidc.plugins.errors import UnavailableError


@dataclass(frozen=True)
class Start:
    """One cold start.

    Attributes:
        seconds: end of each step, counted from before the process was started.
        peak: bytes by metric.
    """

    seconds: dict[str, float]
    peak: dict[str, int]


def start(bundle: Path, stream: str, seed: int, decoder: str | None = None) -> Start:
    """Runs a stream of a bundle in a process of its own, by default with its first decoder.

    Raises:
        UnavailableError: ``VIDC-BENCH-PROCESS``, the process failed.
    """
    arguments = [bundle, stream, seed, *([] if decoder is None else [decoder])]
    command = [sys.executable, "-P", "-m", "vidc.compiler.bench.child", *map(str, arguments)]
    asked = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-2:] or [f"exit status {done.returncode}"]
        raise UnavailableError(
            "VIDC-BENCH-PROCESS",
            f"{stream} failed in a process of its own: {' '.join(last)}",
            "try `vidc run` with this bundle; --cold-starts 0 leaves this part out",
        )
    found = json.loads(done.stdout.splitlines()[-1])
    seconds = {step: at - asked for step, at in found["seconds"].items()}
    return Start(seconds, found["peak"])


def samples(starts: list[Start]) -> Samples:
    """Returns cold starts, in seconds, and peak memory, in bytes, as samples by metric."""
    if not starts:
        return {}
    peaks = {name: [float(each.peak[name]) for each in starts] for name in starts[0].peak}
    return {"cold_start_s": [each.seconds["framed"] for each in starts], **peaks}


def main(folder: Path, name: str, seed: int, decoder: str | None = None) -> None:
    """Opens and runs one stream, then prints its times and peak memory."""
    seconds = {"imported": time.monotonic()}
    manifest = read_bundle(folder, decoder)
    spec, device = manifest.spec, torch.device(manifest.target.device_type)
    if name == OURS:
        contestant = of_bundle(load_bundle(folder, decoder), seed)
    else:
        contestant = of_baselines((name,), folder, manifest, device, seed)[name]
    seconds["loaded"] = time.monotonic()
    stream = contestant.open()
    before, after = read_prompts(folder).to(device)
    if spec.prompt_shape:
        stream.prompt(before)
        seconds["prompted"] = time.monotonic()
    if spec.condition_shapes:
        stream.condition(**spec.draw_conditions(seed=0))
    stream.step().cpu()
    seconds["framed"] = time.monotonic()
    for _ in range(spec.filling):
        stream.step().cpu()
    if spec.prompt_shape:
        stream.switch_prompt(after)
    stream.step().cpu()
    sys.stdout.write(json.dumps({"seconds": seconds, "peak": _peak(device)}) + "\n")


def _peak(device: torch.device) -> dict[str, int]:
    peak = {"peak_rss_bytes": peak_rss_bytes()}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        peak["peak_cuda_bytes"] = torch.cuda.max_memory_allocated(device)
        peak["device_bytes"] = total - free
    return peak
