"""Every operator's kernels under compute-sanitizer: no access out of bounds, no race."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import planted_race
import pytest

SCRIPT = Path(__file__).parents[2] / "support" / "sanitized.py"
CODE = 77
"""Exit status of the tool with a finding."""
TOOL = shutil.which("compute-sanitizer") or shutil.which(
    "compute-sanitizer", path=f"{os.environ.get('CUDA_HOME', '/usr/local/cuda')}/bin"
)
pytestmark = [
    pytest.mark.usefixtures("library"),
    pytest.mark.skipif(TOOL is None, reason="there is no compute-sanitizer"),
]


def watched(tool: str, what: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(TOOL), f"--tool={tool}", f"--error-exitcode={CODE}", sys.executable, SCRIPT, what],
        env=os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_kernels_are_clean_under_the_sanitizer(tool):
    done = watched(tool, "operators")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "launched" in done.stdout
    assert "========= COMPUTE-SANITIZER" in done.stdout


def test_asan_detects_a_write_behind_an_output():
    done = watched("memcheck", "planted")
    assert done.returncode == CODE, done.stdout + done.stderr
    assert "Invalid __global__ write" in done.stdout


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("race", [False, True])
def test_a_race_between_warps_is_seen(tmp_path, race):
    """The tool finds a race in a sum without its barrier, and none with it."""
    program = planted_race.build(tmp_path, race)
    done = subprocess.run(
        [str(TOOL), "--tool=racecheck", f"--error-exitcode={CODE}", program],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "launched" in done.stdout
    assert done.returncode == (CODE if race else 0), done.stdout + done.stderr
    assert ("Race reported" in done.stdout) == race, done.stdout
