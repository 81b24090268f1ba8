import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "text_attention.py"


def test_a_dry_run_measures_both_ways():
    command = [sys.executable, SCRIPT, "--small", "--samples", "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    (result,) = json.loads(done.stdout)["results"]
    assert result["shape"]["distinct"] == 5
    for way in ("merged", "every key"):
        found = result["ways"][way]
        assert len(found["samples"]) == found["n"] == 6
        # Two matmuls of 24 queries and 5 keys, 2 heads of 64 channels.
        assert found["tflops"] == pytest.approx(4 * 24 * 5 * 128 / found["median"] / 1e9)
        assert found["gbps"] == pytest.approx(4 * (24 + 5) * 128 / found["median"] / 1e6)
        assert 0 < found["relative_l2"] < 1e-2
    speedup = result["ways"]["every key"]["median"] / result["ways"]["merged"]["median"]
    assert result["merged_against_every_key"]["speedup"] == pytest.approx(speedup)
