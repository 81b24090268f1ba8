import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "convolutions.py"


def test_a_dry_run_measures_each_form_of_each_layer():
    command = [sys.executable, SCRIPT, "--small", "--samples", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["rows"]
    for row in rows.values():
        assert all(len(form["samples_ms"]) == 1 for form in row["forms"].values())
        known = [form["relative_l2"] for form in row["forms"].values() if form["relative_l2"]]
        assert 0 < max(known) < 3e-3
    wanted = {"conv3d", "F(3, 3)", "operator of F(3, 3)", "operator with residual of F(3, 3)"}
    assert rows["384 > 384 at 60x104"]["forms"].keys() == wanted
    assert rows["192 > 96, 240x416 upsampled"]["forms"].keys() == {"upsampled", "phases"}
