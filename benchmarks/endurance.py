"""Plays a long stream of a bundle: drift of its time, growth of its memory, and CUDA calls of a
block.

    python benchmarks/endurance.py BUNDLE --blocks 1000 > benchmarks/results/NAME-endurance.json

Times are from block to block with decoding, as a viewer gets them. Memory is read once every
hundred blocks, when the device is idle.
"""

import argparse
import json
import re
from itertools import pairwise
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.statistics import Summary
from vidc.compiler.bench.usage import peak_rss_bytes
from vidc.compiler.validate.golden import prompt_files
from vidc.runtime import load
from vidc.runtime.programs.causal_video import CausalVideo

CHAPTER = 100
CUDA_CALL = re.compile(r"cuda|cu[A-Z]")
"""Begins the names of its runtime's and its driver's calls, not those of cuDNN's kernels."""


def memory(device: torch.device) -> dict[str, int]:
    found = {"peak_rss_bytes": peak_rss_bytes()}
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        found["allocated_bytes"] = torch.cuda.memory_allocated(device)
        found["reserved_bytes"] = torch.cuda.memory_reserved(device)
        found["device_bytes"] = total - free
    return found


def stream(
    session: CausalVideo, blocks: int, clock: Clock
) -> tuple[list[float], list[dict[str, int]]]:
    """Milliseconds from block to block, and memory after each chapter."""
    device, marks = session.latents.device, [clock.mark()]
    times: list[float] = []
    found: list[dict[str, int]] = []
    for block in range(1, blocks + 1):
        session.step()
        clock.reach(marks[-1])
        marks.append(clock.mark())
        if block % CHAPTER == 0:
            assert session.latents.isfinite().all(), f"block {block} is not finite"
            times += [clock.between(first, second) for first, second in pairwise(marks)]
            found.append(memory(device))
            marks = [clock.mark()]
    return times, found


def calls_of_a_block(session: CausalVideo) -> dict[str, int]:
    """Calls of CUDA's runtime and driver while a block is generated and decoded."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        session.step()
    torch.cuda.synchronize()
    events = seen.key_averages()
    return {e.key: e.count for e in events if CUDA_CALL.match(e.key)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--blocks", type=int, default=1000)
    args = parser.parse_args()
    bundle = load(args.bundle)
    session, clock = bundle.session(), Clock(bundle.device)
    prompt = load_file(prompt_files(args.bundle)[0])["text_embeds"].to(bundle.device)
    session.prompt(prompt)
    times, found = stream(session, args.blocks, clock)
    chapters = [times[first : first + CHAPTER] for first in range(0, len(times), CHAPTER)]
    summaries = [Summary.of(chapter) for chapter in chapters]
    document = {
        "schema": 1,
        "bundle": args.bundle.name,
        "blocks": session.blocks,
        "chapters": [
            {"median_ms": s.median, "ci95_ms": s.ci95, "max_ms": s.max, **m}
            for s, m in zip(summaries, found, strict=True)
        ],
        "last_over_second": summaries[-1].median / summaries[1].median,
        "grown_bytes": {name: found[-1][name] - found[0][name] for name in found[0]},
        "calls_of_a_block": calls_of_a_block(session) if bundle.device.type == "cuda" else None,
        "working_bytes": bundle.working_bytes(),
        "gpu_state": gpu_state(bundle.device),
        "fingerprint": fingerprint(bundle.device, args.bundle),
        "samples_ms": times,
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
