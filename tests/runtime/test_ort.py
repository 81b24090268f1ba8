"""ONNX Runtime neither phones home nor leaves files there, unless the user asks it to."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vidc.runtime.ort

ROOT = Path(__file__).parents[2]
SESSION = """
import socket
from vidc.runtime.engines.onnxruntime import _IDENTITY
from vidc.runtime.ort import onnxruntime
onnxruntime.InferenceSession(_IDENTITY, providers=["CPUExecutionProvider"])
try:
    socket.getaddrinfo("watched.invalid", None)
except OSError:
    pass
"""
RESOLVER = """
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **result) {
    FILE *log = fopen(getenv("LOOKUPS"), "a");
    fprintf(log, "%s\\n", node ? node : "");
    fclose(log);
    return EAI_FAIL;
}
"""


@pytest.fixture(scope="module")
def resolver(tmp_path_factory):
    """A library that writes down every name that a process looks up, and finds none."""
    if shutil.which("cc") is None:
        pytest.skip("no C compiler on this machine")
    library = tmp_path_factory.mktemp("resolver") / "resolver.so"
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", library, "-x", "c", "-"],
        input=RESOLVER, text=True, check=True,
    )  # fmt: skip
    return library


@pytest.mark.parametrize("asked_for", [False, True])
def test_a_session_sends_and_leaves_nothing_unless_asked_to(resolver, tmp_path, asked_for):
    # In CI ONNX Runtime is quiet by itself.
    hidden = {"CI", "ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME"}
    environ = {name: value for name, value in os.environ.items() if name not in hidden}
    environ |= {"HOME": str(tmp_path / "home"), "LD_PRELOAD": str(resolver)}
    environ |= {"LOOKUPS": str(tmp_path / "lookups")}
    environ |= {"ORT_DISABLE_TELEMETRY": "0"} if asked_for else {}
    (tmp_path / "home").mkdir()
    subprocess.run([sys.executable, "-c", SESSION], env=environ, check=True, timeout=60)

    lookups = (tmp_path / "lookups").read_text().splitlines()
    left = [file.name for file in (tmp_path / "home").rglob("*") if file.is_file()]
    assert "watched.invalid" in lookups
    if asked_for:
        assert "deviceid" in left
    else:
        assert (lookups, left) == (["watched.invalid"], [])


def test_nothing_else_imports_onnxruntime():
    imports = re.compile(r"^\s*(import onnxruntime|from onnxruntime)", re.MULTILINE)
    files = [f for top in ("compiler", "exporters", "plugins", "runtime")
             for f in (ROOT / top).rglob("*.py")]  # fmt: skip
    found = [file for file in files if imports.search(file.read_text())]
    assert found == [Path(ROOT / "runtime" / "ort.py")]
    assert vidc.runtime.ort.onnxruntime.__name__ == "onnxruntime"
