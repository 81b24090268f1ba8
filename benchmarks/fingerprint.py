"""Where a measurement was taken."""

import hashlib
import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def fingerprint() -> dict[str, object]:
    """Machine, versions and commit, with a hash of them all."""
    found: dict[str, object] = {
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {
            name: _version(name)
            for name in ("vidc", "torch", "onnxruntime", "onnx", "onnxscript", "diffusers")
        },
        "commit": subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip(),
    }
    text = json.dumps(found, sort_keys=True)
    return {**found, "hash": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
