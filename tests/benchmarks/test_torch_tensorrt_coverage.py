"""Counting, with stand-ins for Torch-TensorRT's registry and lowering: it imports on GPUs alone."""

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch
import torch_tensorrt_coverage as coverage
from torch import nn

from vidc.compiler.store.sources import source_digest
from vidc.exporters.families.causal_video import CausalVideo

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "torch-tensorrt-coverage.json"


class Registry:
    """Has a converter of additions, and of products by a number alone."""

    def __contains__(self, node):
        return node.target is torch.ops.aten.add.Tensor or (
            node.target is torch.ops.aten.mul.Tensor and not hasattr(node.args[1], "meta")
        )


class Toy(nn.Module):
    def forward(self, x):
        return (x + x) * 2 + (x * x) + x.sin()


@pytest.fixture
def torch_tensorrt(monkeypatch):
    """Registry, settings and a lowering that changes nothing, where they are imported from."""
    dynamo = "torch_tensorrt.dynamo"
    parts = {
        "torch_tensorrt": {},
        dynamo: {"convert_exported_program_to_serialized_trt_engine": lambda *_, **__: b"plan"},
        f"{dynamo}.conversion": {"DYNAMO_CONVERTERS": Registry()},
        f"{dynamo}._settings": {"CompilationSettings": SimpleNamespace},
        f"{dynamo}.lowering": {
            "get_decompositions": dict,
            "pre_export_lowering": lambda program, settings: program,
            "post_lowering": lambda module, settings: module,
        },
    }
    for name, attributes in parts.items():
        module = ModuleType(name)
        module.__dict__.update(attributes)
        monkeypatch.setitem(sys.modules, name, module)


def test_a_call_is_counted_by_whether_a_converter_takes_it(torch_tensorrt):
    program = torch.export.export(Toy(), (torch.ones(2),))
    found = coverage.covered(program)
    assert found["covered_operators"] == {"aten.add.Tensor": 3, "aten.mul.Tensor": 1}
    assert found["uncovered_operators"] == {"aten.mul.Tensor": 1, "aten.sin.default": 1}
    assert (found["covered"], found["uncovered"]) == (4, 2)


def test_a_component_is_asked_for_in_both_forms(torch_tensorrt, monkeypatch):
    monkeypatch.setattr(coverage, "MODELS", {"small": ("tiny", ("model.layers=1",))})
    monkeypatch.setattr(coverage, "ENGINES", {("small", "text_kv")})
    monkeypatch.setattr(CausalVideo, "components", {"text_kv": "transformer"})
    exported, portable = coverage.rows("small", [])
    assert (exported["form"], portable["form"]) == ("exported", "portable")
    assert portable["uncovered_operators"]["aten.linear.default"] > 0
    assert ("engine_bytes" in exported, portable["engine_bytes"]) == (False, 4)
    assert list(coverage.rows("small", [exported, portable])) == []
    (again,) = coverage.rows("small", [exported])
    assert again == portable


def test_what_a_step_says_stands_in_its_row(torch_tensorrt, monkeypatch):
    def refuse(program):
        raise ValueError(f"no {ROOT}/exporters/x.py and {coverage.SITE}/torch") from KeyError("y")

    refuse.__name__ = "covered"
    monkeypatch.setattr(coverage, "MODELS", {"small": ("tiny", ("model.layers=1",))})
    monkeypatch.setattr(CausalVideo, "components", {"text_kv": "transformer"})
    monkeypatch.setattr(coverage, "covered", refuse)
    row, _ = coverage.rows("small", [])
    assert row["covered_exception"] == "KeyError: 'y'\nValueError: no exporters/x.py and SITE/torch"


def test_rows_of_other_sources_are_asked_for_again(tmp_path):
    assert coverage.current(tmp_path / "absent.json") == []
    row = {"model": "demo", "sources": source_digest(coverage.SOURCES)}
    file = tmp_path / "rows.json"
    file.write_text(json.dumps({"rows": [row, row | {"sources": "older"}, {"model": "demo"}]}))
    assert coverage.current(file) == [row]


def test_the_documentation_claims_what_was_counted():
    raw = RESULTS.read_text()
    document = json.loads(raw)
    assert str(ROOT) not in raw
    assert "site-packages" not in raw
    assert len({row["sources"] for row in document["rows"]}) == 1
    portable = [row for row in document["rows"] if row["form"] == "portable"]
    assert {row["model"] for row in portable} == set(coverage.MODELS)
    assert all(row["covered"] and not row["uncovered"] for row in portable)
    text = " ".join((ROOT / "docs" / "evidence" / "torch-tensorrt.md").read_text().split())
    assert f"Torch-TensorRT has converters for {document['converters']} operators." in text
    assert "in standard operators, every call in it has a converter" in text
