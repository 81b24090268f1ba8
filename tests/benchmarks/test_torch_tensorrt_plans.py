"""Recorded plans of Torch-TensorRT; rows are built in ``tests/compiler``."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from document_tables import documented
from torch_tensorrt_plans import MODELS, cases, tensors

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "torch-tensorrt-plans.json"


@pytest.fixture(scope="module")
def document():
    return json.loads(RESULTS.read_text())


def test_the_table_of_the_documentation_is_what_was_built(document):
    assert "site-packages" not in RESULTS.read_text()
    names = {preset: model for model, (preset, _) in MODELS.items()}
    rows = {}
    for row in document["rows"]:
        rows.setdefault((names[row["preset"]], row["component"]), []).append(row)
    assert set(rows) == {
        (model, case.component) for model in MODELS for case in cases(model, "bf16")
    }
    assert not any(row["wrong"] or row.get("uncovered") for row in document["rows"])
    text = (ROOT / "docs" / "evidence" / "torch-tensorrt.md").read_text()
    recorded = {}
    for key, built in rows.items():
        (counts,) = {counted(row) for row in built}
        recorded[key] = ("builds", *counts)
    heading = f"| model | component | bf16, for {' and '.join(architectures(document))} |"
    assert documented(text, heading, recorded) == recorded


def architectures(document):
    """Returns the compute capabilities that every component was built for, such as ``8.9``."""
    found = {}
    for row in document["rows"]:
        (architecture,) = row["architectures"]
        found.setdefault(architecture, []).append(row["component"])
    assert len({tuple(components) for components in found.values()}) == 1
    digits = sorted(int(name.removeprefix("sm")) for name in found)
    return [f"{each // 10}.{each % 10}" for each in digits]


def counted(row):
    of = f"{row['fused']} of {row['attentions']}" if row["attentions"] else "none has any"
    return str(row["cache_updates"] or "none"), of


def test_tensors_are_known_by_their_names_in_the_bundle():
    def tensor(name, dtype):
        return SimpleNamespace(name=name, shape=(1, 2), dtype=SimpleNamespace(name=dtype))

    network = SimpleNamespace(
        num_inputs=1,
        num_outputs=1,
        get_input=lambda index: tensor("values_0", "BF16"),
        get_output=lambda index: tensor("output0", "INT64"),
    )
    assert tensors(network, {"values_0": "latent", "output0": "ring.k.0.out"}) == {
        ("in", "latent", (1, 2), "bfloat16"),
        ("out", "ring.k.0.out", (1, 2), "int64"),
    }
