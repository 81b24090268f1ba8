import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "fused_operators.py"


def test_a_dry_run_measures_both_forms_of_a_case():
    command = [sys.executable, SCRIPT, "--small", "--samples", "6", "--only", "ring_write bf16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    (result,) = document["results"]
    # 24 tokens of 128 channels: three projections in and three out, 16 bits each, and angles.
    assert result["bytes"] == 24 * (6 * 128 * 2 + 64 * 4)
    for form in ("kernel", "compiled"):
        assert len(result[form]["samples"]) == result[form]["n"] == 6
        assert min(result[form]["samples"]) > 0
        low, high = result[form]["ci95"]
        assert low <= result[form]["median"] <= high
        assert result[form]["gbps"] == pytest.approx(result["bytes"] / result[form]["median"] / 1e6)
    assert result["speedup"] == pytest.approx(
        result["compiled"]["median"] / result["kernel"]["median"]
    )
    assert "qk_norm_rope_ring_write bf16" in done.stderr
