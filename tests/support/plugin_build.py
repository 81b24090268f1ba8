"""Builds the library of TensorRT plugins and its host, where there are TensorRT's headers.

``VIDC_TEST_TENSORRT_INCLUDE`` names their folders, separated by colons: one for each version that
the library is to be compiled against. No package index has them.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADERS = [
    folder for folder in os.environ.get("VIDC_TEST_TENSORRT_INCLUDE", "").split(":") if folder
]
LIBRARY, HOST = "libvidc_plugins.so", "libvidc_plugin_host.so"
RECORDED = "libvidc_plugins_recorded.so"
"""The plugins over a CUDA that only records launches: ``tests/plugins/host/recorded_cuda.cpp``."""
TOOLS = ("nvcc", "cmake", "g++")
HOPPER = "90a"
"""The architecture that every kernel is for."""


def lacking() -> str | None:
    """What a machine lacks to build them."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    return None if HEADERS else "VIDC_TEST_TENSORRT_INCLUDE names no headers of TensorRT"


NEEDED = pytest.mark.skipif((lack := lacking()) is not None, reason=str(lack))
"""Skips tests where the libraries cannot be built."""


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def configure(folder: Path, *settings: str) -> str:
    """What CMake says; kernels are for one architecture, for tests compile them for all."""
    return run(
        "cmake", "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}",
        f"-DVIDC_ARCHITECTURES={HOPPER}", *settings,
    )  # fmt: skip


def build(base: Path, headers: str, architecture: str = HOPPER) -> Path:
    """A folder with both libraries, built at the first call."""
    folder = base / f"plugin_build_{architecture}"
    made = base / f"plugins-{architecture}-{HEADERS.index(headers)}"
    if not made.exists():
        configure(
            folder,
            f"-DVIDC_TENSORRT_INCLUDE={headers}",
            f"-DVIDC_ARCHITECTURES={architecture}",
        )
        names = (LIBRARY, HOST, RECORDED)
        targets = [name.removeprefix("lib").removesuffix(".so") for name in names]
        run("cmake", "--build", folder, "-j2", "--target", *targets)
        made.mkdir()
        for name in (*names, "compile_commands.json"):
            shutil.copy(folder / name, made / name)
    return made
