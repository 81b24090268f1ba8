"""Builds the library of TensorRT plugins and its host, once for each state of their sources.

TensorRT's headers come from the package in ``tests/headers.txt``. ``TEST_TENSORRT_INCLUDE`` names
folders of other versions, separated by colons, that the library is compiled against as well.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = "kernel_lens"
"""The package that has the headers; only its files are read."""
CACHE = ROOT / "build" / "test_plugins"
LIBRARY, HOST = "libvidc_plugins.so", "libvidc_plugin_host.so"
RECORDED = "libvidc_plugins_recorded.so"
"""The plugins over a CUDA that only records launches: ``tests/plugins/host/recorded_cuda.cpp``."""
COMMANDS = "compile_commands.json"
TOOLS = ("nvcc", "cmake", "g++")
HOPPER = "90a"
"""The architecture that every kernel is for."""


def _headers() -> list[str]:
    named = [f for f in os.environ.get("TEST_TENSORRT_INCLUDE", "").split(":") if f]
    spec = find_spec(PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    packaged = [str(Path(folder, "include", "tensorrt")) for folder in folders or ()]
    return packaged + named


HEADERS = _headers()


def named(headers: str) -> str:
    """The version of TensorRT that a folder of headers is of, for a test's name."""
    file = Path(headers, "NvInferVersion.h")
    text = file.read_text() if headers and file.is_file() else ""
    numbers = re.findall(r"^#define TRT_(?:MAJOR|MINOR)_ENTERPRISE +(\d+)", text, re.MULTILINE)
    return ".".join(numbers) or "none"


def lacking() -> str | None:
    """Tools that this machine lacks to build them."""
    for tool in TOOLS:
        if shutil.which(tool) is None:
            return f"there is no {tool}"
    return None if HEADERS else "TensorRT's headers are missing: pip install -r tests/headers.txt"


NEEDED = pytest.mark.skipif((lack := lacking()) is not None, reason=str(lack))
"""Skips tests where the libraries cannot be built."""


def run(*command: object) -> str:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def configure(folder: Path, *settings: str) -> str:
    """Output of CMake. Kernels are for one architecture: other tests compile them for all."""
    return run(
        "cmake", "-S", ROOT, "-B", folder, f"-DPython_EXECUTABLE={sys.executable}",
        f"-DVIDC_ARCHITECTURES={HOPPER}", *settings,
    )  # fmt: skip


@cache
def build(headers: str, architecture: str = HOPPER) -> Path:
    """A folder with the libraries, built by the first process that asks for these sources."""
    made = CACHE / _digest(headers, architecture)
    with _locked(made.with_suffix(".lock")):
        if not made.exists():
            _build(made, headers, architecture)
    return made


def _build(made: Path, headers: str, architecture: str) -> None:
    with tempfile.TemporaryDirectory(dir=made.parent) as temporary:
        folder, whole = Path(temporary, "build"), Path(temporary, "made")
        configure(
            folder,
            f"-DVIDC_TENSORRT_INCLUDE={headers}",
            f"-DVIDC_ARCHITECTURES={architecture}",
        )
        names = (LIBRARY, HOST, RECORDED)
        targets = [name.removeprefix("lib").removesuffix(".so") for name in names]
        run("cmake", "--build", folder, "-j2", "--target", *targets)
        whole.mkdir()
        for name in (*names, COMMANDS):
            shutil.copy(folder / name, whole / name)
        whole.rename(made)


def _digest(headers: str, architecture: str) -> str:
    """Digest of all that the libraries are made of."""
    sources = [ROOT / "CMakeLists.txt", ROOT / "plugins" / "abi.py"]
    for folder in ("plugins/cuda", "plugins/binding", "tests/plugins/host"):
        sources += sorted((ROOT / folder).iterdir())
    sources += sorted(Path(headers).rglob("*.h"))
    digest = hashlib.sha256(f"{architecture} {run('nvcc', '--version')}".encode())
    for path in sources:
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()} ".encode())
    return digest.hexdigest()[:32]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
