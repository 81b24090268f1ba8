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
"""What the tool exits with where it found something."""
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
def test_no_kernel_does_what_it_must_not(tool):
    done = watched(tool, "operators")
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "launched" in done.stdout
    assert "========= COMPUTE-SANITIZER" in done.stdout


def test_what_is_written_behind_an_output_is_seen():
    done = watched("memcheck", "planted")
    assert done.returncode == CODE, done.stdout + done.stderr
    assert "Invalid __global__ write" in done.stdout


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("race", [False, True])
def test_a_race_between_warps_is_seen(tmp_path, race):
    """In a sum whose barrier was taken out, and none where it is."""
    program = planted_race.build(tmp_path, race)
    done = subprocess.run(
        [str(TOOL), "--tool=racecheck", f"--error-exitcode={CODE}", program],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert "launched" in done.stdout
    assert done.returncode == (CODE if race else 0), done.stdout + done.stderr
    assert ("Race reported" in done.stdout) == race, done.stdout
