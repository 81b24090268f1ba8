"""Cold starts and memory, each taken by a process of its own."""

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from vidc.compiler.bench.metrics import Samples
from vidc.compiler.validate.golden import prompt_files
from vidc.plugins.errors import UnavailableError

STEPS = ("imported", "loaded", "prompted", "framed")
"""What a cold start consists of, in the order in which it is done."""


@dataclass(frozen=True)
class Start:
    """One cold start.

    Attributes:
        seconds: from before the process was asked for, by the step that was done then.
        peak: bytes by metric.
    """

    seconds: dict[str, float]
    peak: dict[str, int]


def start(bundle: Path, stream: str, seed: int) -> Start:
    """Runs a stream of a bundle in a process of its own.

    Raises:
        UnavailableError: ``VIDC-BENCH-PROCESS``, the process failed.
        GateError: ``VIDC-VALIDATE-GOLDEN``, the bundle has no prompts.
    """
    arguments = [bundle, *prompt_files(bundle), stream, seed]
    command = [sys.executable, "-P", "-m", "vidc.compiler.bench.alone", *map(str, arguments)]
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
    seconds = {step: found["seconds"][step] - asked for step in STEPS}
    return Start(seconds, found["peak"])


def samples(starts: list[Start]) -> Samples:
    """Cold starts and memory as samples of their metrics."""
    if not starts:
        return {}
    peaks = {name: [float(each.peak[name]) for each in starts] for name in starts[0].peak}
    return {"cold_start_s": [each.seconds["framed"] for each in starts], **peaks}
