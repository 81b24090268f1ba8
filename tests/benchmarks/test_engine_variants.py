"""The benchmark of an engine's variants, up to where a GPU is needed."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
CODE = """
import engine_variants
from vidc.compiler.backends.aoti.cuda import REWRITES
from vidc.compiler.backends.aoti.gelu_epilogues import NAME
part = engine_variants.part_of("svd", "denoise_shallow")
assert "denoise_shallow" in part.component_names
assert (part.frames, part.latent, part.batch) == (14, (72, 128), 2)
assert "vae_decode" in engine_variants.part_of("svd", "vae_decode").component_names
assert "denoise" in engine_variants.part_of("oasis-500m", "denoise").component_names
operators = [set(operators) for operators, _ in engine_variants.VARIANTS.values()]
assert set() in operators and {*REWRITES, NAME} in operators
assert all({name} in operators for name in (*REWRITES, NAME))
"""


@pytest.mark.parametrize("command", [["-c", CODE], [FOLDER / "engine_variants.py", "--help"]])
def test_it_names_components_and_variants(command):
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=FOLDER, timeout=300
    )
    assert done.returncode == 0, done.stderr
