"""A dozen of the engines of ``benchmarks/tensorrt_matrix.py``: every component, and each pair of
model, precision and target."""

import json
from pathlib import Path

import pytest

pytest.importorskip("tensorrt_rtx")

from document_tables import documented
from tensorrt_matrix import MODELS, PRECISIONS, TARGETS, Case, build, cases

from vidc.compiler.config.schema import EIGHT_BITS

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


SHALLOW = {("denoise", "int8"), ("vae_decode", "bf16")}
"""Built by `make test` too; tests/bundle/tensorrt builds whole bundles in fp16 and FP8."""


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(
            case,
            id=f"{case.model}-{case.component}-{case.precision}",
            marks=[] if (case.component, case.precision) in SHALLOW else pytest.mark.deep,
        )
        for case in DOZEN
    ],
)
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


def test_the_documentation_claims_what_was_recorded():
    root = Path(__file__).parents[2]
    raw = json.loads((root / "benchmarks" / "results" / "tensorrt-rtx-matrix.json").read_text())
    rows = {Case(r["model"], r["component"], r["precision"], r["target"]): r for r in raw["rows"]}
    assert rows.keys() == set(cases(MODELS))
    assert not any(row["wrong"] for row in rows.values())
    recorded = {}
    for model, component in {(c.model, c.component) for c in rows}:
        own = [row for c, row in rows.items() if (c.model, c.component) == (model, component)]
        eight = {row["products"] for row in own if row["precision"] in EIGHT_BITS}
        products = "".join(f"all four build, {n} of {n} matmuls" for n in eight)
        ((fused, attentions),) = {(row["fused"], row["attentions"]) for row in own}
        of = f"{fused} of {attentions}" if attentions else "none has any"
        recorded[model, component] = ("all four build", products or "not quantized", of)
    text = (root / "docs" / "evidence" / "tensorrt.md").read_text()
    head = "| model | component | fp16 and bf16, for 8.9 and 12.0 |"
    assert documented(text, head, recorded) == recorded
