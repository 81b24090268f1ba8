"""Times loading a bundle in a new process for each mode of ``verify``, in turns.

    python benchmarks/loading.py BUNDLE --rounds 4 > benchmarks/results/NAME-loading.json

A process imports the runtime, loads the bundle and opens a session. After the first round, files
come from the page cache.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch

from vidc.compiler.bench.fingerprint import fingerprint
from vidc.runtime.manifest import read_manifest

STEPS = ("import_s", "load_s", "session_s")
PROCESS = """
import sys
from time import perf_counter
times = [perf_counter()]
from vidc.runtime import load
times.append(perf_counter())
bundle = load(sys.argv[1], sys.argv[2])
times.append(perf_counter())
bundle.session()
times.append(perf_counter())
print(*(later - earlier for earlier, later in zip(times, times[1:])))
"""


def seconds(bundle: Path, verify: str) -> dict[str, float]:
    """Seconds of each step in one process."""
    command = [sys.executable, "-c", PROCESS, str(bundle), verify]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(STEPS, map(float, done.stdout.split()[-3:]), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args()
    document = read_manifest(options.bundle)
    modes: dict[str, list[dict[str, float]]] = {"full": [], "fast": [], "off": []}
    for _ in range(options.rounds):
        for verify, rows in modes.items():
            rows.append(seconds(options.bundle, verify))
    print(
        json.dumps(
            {
                "schema": 1,
                "bundle": document.name,
                "fingerprint": fingerprint(torch.device(document.target.device_type)),
                "modes": modes,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
