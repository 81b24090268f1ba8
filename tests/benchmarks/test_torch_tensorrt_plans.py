"""What was recorded of plans by Torch-TensorRT; rows are built in ``tests/compiler``."""

import json
from pathlib import Path
from types import SimpleNamespace

from document_tables import documented
from torch_tensorrt_plans import MODELS, cases, tensors

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "torch-tensorrt-plans.json"


def test_the_table_of_the_documentation_is_what_was_built():
    raw = RESULTS.read_text()
    assert "site-packages" not in raw
    names = {preset: model for model, (preset, _) in MODELS.items()}
    rows = {(names[row["preset"]], row["component"]): row for row in json.loads(raw)["rows"]}
    assert set(rows) == {(names[case.preset], case.component) for case in cases("bf16")}
    assert not any(row["wrong"] for row in rows.values())
    assert {tuple(row["architectures"]) for row in rows.values()} == {("sm80",)}
    text = (ROOT / "docs" / "backends.md").read_text()
    recorded = {key: ("builds", *counted(row)) for key, row in rows.items()}
    assert documented(text, "| model | component | bf16, for 8.0 |", recorded) == recorded


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
