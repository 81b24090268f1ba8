"""A dozen of the engines of ``benchmarks/tensorrt_matrix.py``: every component, and each pair of
model, precision and target."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx")

from tensorrt_matrix import MODELS, PRECISIONS, TARGETS, Case, build, cases

from vidc.compiler.settings.schema import EIGHT_BITS

DEMO, LONGLIVE = MODELS
DOZEN = [
    Case(LONGLIVE, "denoise", "fp8", "rtx4090"),
    Case(DEMO, "denoise", "int8", "rtx5090"),
    Case(LONGLIVE, "denoise", "bf16", "rtx4090"),
    Case(DEMO, "text_kv", "fp8", "rtx5090"),
    Case(LONGLIVE, "kv_update", "int8", "rtx4090"),
    Case(DEMO, "recache_6", "bf16", "rtx5090"),
    Case(LONGLIVE, "recache_9", "fp16", "rtx4090"),
    Case(DEMO, "recache_12", "fp16", "rtx5090"),
    Case(LONGLIVE, "vae_decode", "bf16", "rtx5090"),
    Case(DEMO, "vae_decode_first", "bf16", "rtx4090"),
    Case(DEMO, "vae_encode_first", "fp16", "rtx4090"),
    Case(LONGLIVE, "vae_encode", "fp16", "rtx5090"),
]


@pytest.mark.parametrize("case", DOZEN, ids=lambda c: f"{c.model}-{c.component}-{c.precision}")
def test_an_engine_is_what_it_should_be(case):
    row = build(case)
    assert row["wrong"] == []
    assert row["plan_bytes"] < 64 * 2**20, "the weights are outside"


def test_the_dozen_covers_the_pairs():
    assert {c.component for c in DOZEN} == {c.component for c in cases(MODELS)}
    pairs = {(c.model, c.precision, c.target) for c in DOZEN}
    for model in MODELS:
        assert {p for m, p, _ in pairs if m == model} == set(PRECISIONS)
        assert {t for m, _, t in pairs if m == model} == set(TARGETS)
    assert {(p, t) for _, p, t in pairs} == {(p, t) for p in PRECISIONS for t in TARGETS}


def test_the_matrix_has_the_transformer_in_8_bits_and_nothing_else():
    found = {c.component for c in cases(MODELS) if c.precision in EIGHT_BITS}
    every = {c.component for c in cases(MODELS)}
    assert every - found == {name for name in every if name.startswith("vae_")}
    assert len(list(cases(MODELS))) == 2 * 2 * (6 * len(PRECISIONS) + 4 * 2)


def test_the_documentation_claims_no_engine_in_8_bits_that_was_not_recorded():
    root = Path(__file__).parents[2]
    text = (root / "docs" / "backends.md").read_text()
    _, _, table = text.partition("| model | component | fp8, 8.9 | fp8, 12.0 |")
    claimed = {}
    for line in table.partition("\n\n")[0].splitlines()[2:]:
        model, component, *cells = (cell.strip(" `") for cell in line.split("|")[1:-1])
        columns = [(p, t) for p in EIGHT_BITS for t in TARGETS]
        claimed |= {(model, component, *c): cell for c, cell in zip(columns, cells, strict=True)}
    every = {(c.model, c.component, c.precision, c.target) for c in cases(MODELS)
             if c.precision in EIGHT_BITS}  # fmt: skip
    assert {key for key in claimed if key[0] in MODELS} == every
    raw = json.loads((root / "benchmarks" / "results" / "tensorrt-rtx-matrix.json").read_text())
    built = {(r["model"], r["component"], r["precision"], r["target"]) for r in raw["rows"]
             if not r["wrong"]}  # fmt: skip
    in_ci = {(c.model, c.component, c.precision, c.target) for c in DOZEN}
    allowed = {key: {"not recorded"} | ({"builds"} if key in built else set()) for key in claimed}
    assert all(
        cell == "in CI" if key in in_ci else cell in allowed[key] for key, cell in claimed.items()
    )
