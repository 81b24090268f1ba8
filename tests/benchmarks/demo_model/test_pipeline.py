"""The demo's whole way, from nothing to judged videos, as its README says to run it."""

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
from tiny_demo import PLAN


def python(*arguments):
    command = [sys.executable, "-m", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3] / "benchmarks")}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)


@pytest.mark.deep
def test_a_trial_runs_from_nothing_to_judged_videos(preset, tmp_path):
    command = ["demo_model", "--dir", tmp_path, "--preset", preset, "--steps", 20]
    command += [f"--set={name}={value}" for name, value in asdict(PLAN).items()]
    for bad in ("--minutes=0.25", "--scale=0", "--steps=-1", "--set=clips", "--set=x=1"):
        assert python(*command, bad).returncode == 2
    stopped = python(*command, "--minutes", 0.27)
    assert stopped.stdout.endswith("stopped: run the same command again\n"), stopped.stderr
    other = python(*command, "--seed", 1)
    assert "another seed" in other.stderr
    trained = python(*command, "--minutes", 30)
    assert trained.stdout.endswith("all stages are over\n"), trained.stderr
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [row["stage"] for row in rows if "done" in row] == ["vae", "tiny", "flow", "self"]
    counts = ["--prompts", 4, "--switch", 5, "--long", 2, "--blocks", 7]
    counts += ["--batch", 2, "--device", "cpu"]
    judged = python("demo_model.evaluate", tmp_path / "weights", "--eager", *counts)
    assert judged.returncode == 1, judged.stderr
    found = json.loads(judged.stdout)
    assert (found["color"]["n"] >= 4, found["switch"]["n"], found["long"]["n"]) == (True, 5, 2)
    assert (found["decoder"], found["fingerprint"]["machine"]["gpu"]) == ("vae", None)
    assert found["missed"], "a model of twenty steps draws nothing right"
    right = [clip["right"] for clip in found["clips"] if clip["switch"] is not None]
    assert sum(right) / 5 == found["switch"]["rate"]
