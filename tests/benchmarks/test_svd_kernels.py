"""The benchmark of fused operators in a clip's engines, up to where a GPU is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
CODE = """
import svd_kernels
from vidc.compiler.backends.aoti.cuda import REWRITES
part = svd_kernels.part_of("denoise_shallow")
assert "denoise_shallow" in part.component_names
assert (part.frames, part.latent, part.batch) == (14, (72, 128), 2)
assert "vae_decode" in svd_kernels.part_of("vae_decode").component_names
operators = [set(operators) for operators, _ in svd_kernels.VARIANTS.values()]
assert set() in operators and {*REWRITES} in operators
assert all({name} in operators for name in REWRITES)
"""


@pytest.mark.parametrize("command", [["-c", CODE], [FOLDER / "svd_kernels.py", "--help"]])
def test_it_names_components_and_variants(command):
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=FOLDER, timeout=300
    )
    assert done.returncode == 0, done.stderr
