"""A shared library of a few lines of C, in the place of one of vidc's."""

import shutil
import subprocess
from pathlib import Path

import pytest


def shared_library(source: str, path: Path) -> Path:
    """Compiles C to ``path``; skips the test where there is no compiler."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    file = path.with_suffix(".c")
    file.write_text(source)
    command = ["cc", "-shared", "-fPIC", "-o", path, file]
    subprocess.run(command, check=True, capture_output=True)
    return path
