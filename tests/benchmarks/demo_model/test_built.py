"""What is kept of a build's validation, whether it passes or not."""

import json
import re
from pathlib import Path

from demo_model.built import RECIPES, figures, table_row
from shipped_recipes import of_targets

ROOT = Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks/results/demo-8bit.json"


def gate(component, value, threshold):
    return {
        "where": "component", "component": component, "metric": "relative_l2",
        "value": value, "threshold": threshold, "passed": value <= threshold,
    }  # fmt: skip


def test_the_worst_of_components_and_blocks():
    validation = {
        "passed": False,
        "gates": [gate("denoise", 0.3, 0.2), gate("kv_update", 0.1, 0.2)],
        "components": [
            {"component": "kv_update", "relative_l2": 0.1},
            {"component": "denoise", "relative_l2": 0.3},
        ],
        "rollout": [{"psnr_db": 40.0, "ssim": 0.97}, {"psnr_db": 38.0, "ssim": 0.99}],
        "eager": {"components": {"denoise": 0.16, "kv_update": 0.08}},
    }
    found = figures(validation)
    assert (found["passed"], found["gates"], found["failed"]) == (False, 2, 1)
    assert found["worst component"] == "denoise"
    assert found["components"]["denoise"] == {"relative L2": 0.3, "limit": 0.2, "PyTorch's": 0.16}
    assert found["worst block"] == {"dB": 38.0, "SSIM": 0.97}
    assert found["blocks"] == [{"dB": 40.0, "SSIM": 0.97}, {"dB": 38.0, "SSIM": 0.99}]


def test_every_shipped_recipe_is_built():
    assert sorted(RECIPES) == sorted(of_targets())


def test_the_documentation_has_the_rows_of_the_file():
    rows = json.loads(RESULTS.read_text())["rows"]
    text = (ROOT / "docs/evidence/quality.md").read_text()
    shown = re.findall(r"^\| `[\w-]+` \| `(?:aoti|onnxruntime)` \| .* dB \| .*$", text, re.M)
    assert shown == [table_row(row) for row in rows]
