"""The fused operators' kernels on a CPU under AddressSanitizer: nothing outside of memory."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fused_on_cpu
import pytest

SCRIPT = Path(fused_on_cpu.__file__).with_name("fused_under_asan.py")
pytestmark = pytest.mark.deep
CODE = 66
"""Exit status of a process with a finding."""


def sanitizer() -> str | None:
    if shutil.which("g++") is None:
        return None
    command = ["g++", "-print-file-name=libasan.so"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return path if Path(path).is_absolute() else None


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    if (library := sanitizer()) is None:
        pytest.skip("g++ has no AddressSanitizer")
    # Not stacks: threads' are left in the middle and serve again.
    flags = ("-fsanitize=address", "--param=asan-stack=0", "-fno-omit-frame-pointer", "-g1")
    built = fused_on_cpu.compiled(tmp_path_factory.mktemp("asan"), *flags)
    # Python's and torch's own memory is not looked for leaks.
    options = f"exitcode={CODE}:detect_leaks=0"

    def run(what: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, SCRIPT, built, what],
            env=os.environ | {"LD_PRELOAD": library, "ASAN_OPTIONS": options},
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    return run


def test_kernels_stay_inside_their_tensors(watched):
    done = watched("operators")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert "ran" in done.stdout


def test_asan_detects_a_write_behind_an_output(watched):
    done = watched("planted")
    assert done.returncode == CODE, done.stdout + done.stderr[-6000:]
    assert "heap-buffer-overflow" in done.stderr
    assert "gelu_quantize_kernel" in done.stderr
