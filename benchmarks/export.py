"""Measures `vidc export` of a preset, with its workers and an empty cache: seconds and memory.

    python benchmarks/export.py longlive-1.3b > export.json

Memory is the peak over all its processes of their proportional set size: their own pages and their
share of common ones, sampled twice a second. ``cpu_seconds`` are user and system time of all its
processes; other work on the machine disturbs them less than ``seconds``.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from vidc.compiler.bench.fingerprint import fingerprint

INTERVAL_SECONDS = 0.5


def processes(pid: int) -> list[int]:
    """A process and all that descend from it."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(p for child in children for p in processes(int(child)))]


def proportional_kib(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # It has ended.
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def cpu_seconds() -> float:
    """User and system time of all ended child processes and theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(preset: str, precision: str) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        command = [
            "vidc", "export", preset, "--gpu", "h100", "--precision", precision,
            "-o", str(Path(folder, "export")),
        ]  # fmt: skip
        environment = os.environ | {"VIDC_CACHE": str(Path(folder, "cache"))}
        started, before, peak = time.perf_counter(), cpu_seconds(), 0
        export = subprocess.Popen(command, env=environment, stdout=sys.stderr)
        while export.poll() is None:
            peak = max(peak, sum(map(proportional_kib, processes(export.pid))))
            time.sleep(INTERVAL_SECONDS)
        if export.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {export.returncode}")
        return {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": cpu_seconds() - before,
            "peak_bytes": peak * 1024,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", nargs="?", default="longlive-1.3b")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--samples", type=int, default=1)
    args = parser.parse_args()
    samples = [measure(args.preset, args.precision) for _ in range(args.samples)]
    document = {
        "schema": 1,
        "preset": args.preset,
        "precision": args.precision,
        "samples": samples,
        "fingerprint": fingerprint(),
    }
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
