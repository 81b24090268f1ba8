"""Fingerprint of a measurement: machine, software and a hash of both."""

import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from vidc.compiler.store.digest import sha256_file, sha256_json
from vidc.compiler.store.sources import installed
from vidc.runtime.manifest import MANIFEST_NAME

PACKAGES = (
    "vidc", "torch", "triton", "numpy", "onnxruntime", "onnxruntime-gpu", "tensorrt",
    "tensorrt-rtx", "torch-tensorrt", "onnx", "onnxscript", "diffusers",
)  # fmt: skip
LIMITS = {
    "max_sm_clock_mhz": "clocks.max.sm",
    "max_memory_clock_mhz": "clocks.max.mem",
    "power_limit_w": "power.limit",
    "mig": "mig.mode.current",
}
DRIVER = {"driver": "driver_version"}
STATE = {
    "sm_clock_mhz": "clocks.sm",
    "memory_clock_mhz": "clocks.mem",
    "power_w": "power.draw",
    "temperature_c": "temperature.gpu",
    "limited_by": "clocks_event_reasons.active",
}
"""State that changes while a GPU works, by ``nvidia-smi`` field like the tables above."""


def fingerprint(device: torch.device | None = None, bundle: Path | None = None) -> dict[str, Any]:
    """Returns machine and software with a hash over both.

    Args:
        device: measured device; a GPU becomes part of the machine.
        bundle: measured bundle, of which the manifest's digest is recorded.

    Returns:
        ``machine``, which two measurements must share to be compared, ``software``, ``bundle``
        and ``hash``.
    """
    gpu = device if device is not None and device.type == "cuda" else None
    found: dict[str, Any] = {
        "machine": {
            "cpu": _cpu(),
            "cores": len(os.sched_getaffinity(0)),
            "threads": torch.get_num_threads(),
            "gpu": None if gpu is None else _gpu(gpu),
        },
        "software": {
            "system": platform.platform(),
            "python": platform.python_version(),
            **(dict.fromkeys(DRIVER) if gpu is None else _nvidia_smi(gpu, DRIVER)),
            "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(),
            "packages": {name: installed(name) for name in PACKAGES},
            "commit": _commit(),
        },
        "bundle": None if bundle is None else sha256_file(bundle / MANIFEST_NAME),
    }
    return {**found, "hash": sha256_json(found)}


def gpu_state(device: torch.device) -> dict[str, str | None] | None:
    """Returns current clocks, power and temperature of a GPU; None for a CPU."""
    return _nvidia_smi(device, STATE) if device.type == "cuda" else None


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def _gpu(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "name": properties.name,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        **_nvidia_smi(device, LIMITS),
    }


def _nvidia_smi(device: torch.device, fields: Mapping[str, str]) -> dict[str, str | None]:
    """Returns ``nvidia-smi`` fields by our names; each is None if the tool fails."""
    gpu = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    query = f"--query-gpu={','.join(fields.values())}"
    told = _output(["nvidia-smi", "-i", gpu, query, "--format=csv,noheader,nounits"])
    values = [value.strip() for value in told.split(",")] if told else []
    if len(values) != len(fields):
        return dict.fromkeys(fields)
    return dict(zip(fields, values, strict=True))


def _commit() -> str | None:
    """Returns the commit of vidc's sources, ``-dirty`` if changed; None outside a checkout."""
    here = Path(__file__).resolve()
    git = ["git", "-C", str(here.parent)]
    if _output([*git, "ls-files", "--error-unmatch", here.name]) is None:
        return None
    return _output([*git, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"])


def _output(command: list[str]) -> str | None:
    """Returns the output of a command; None if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
