import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attention.py"
# Values have no common part here: what 8 bits lose is not hidden by it.
LARGEST_ERRORS = {"fp8": 0.06, "int8": 0.03}


def test_a_dry_run_measures_every_way_of_every_shape():
    command = [sys.executable, SCRIPT, "--small", "--samples", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    ring, short = document["results"]
    # 24 queries against 60 of 96 slots, 2 heads of 64: two products, an operation each of two.
    assert ring["operations"] == 4 * 2 * 24 * 60 * 64
    assert short["shape"]["dtype"] == "float16"
    for result in (ring, short):
        assert set(result["ways"]) == {"vidc", "sdpa math", *LARGEST_ERRORS}
        for name, way in result["ways"].items():
            assert len(way["samples"]) == way["n"] == 6
            assert way["tflops"] == pytest.approx(result["operations"] / way["median"] / 1e9)
            assert 0 < way["relative_l2"] < LARGEST_ERRORS.get(name, 1e-2)
