"""Exported programs from elsewhere: what could run code when PyTorch reads them is refused."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vidc.compiler.build.place import refuse_code
from vidc.compiler.config.resolve import resolve
from vidc.exporters.parts.umt5.config import TextEncoderConfig
from vidc.exporters.program import export_program, save_program
from vidc.plugins.errors import GateError


def program(folder: Path, graph: Any) -> Path:
    file = folder / "a.pt2"
    text = graph if isinstance(graph, str) else json.dumps(graph)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/models/model.json", text)
    return file


def call(target: str) -> dict[str, Any]:
    return {"graph_module": {"graph": {"nodes": [{"target": target, "inputs": []}]}}}


@pytest.mark.parametrize(
    "target",
    [
        "torch.os.system",
        "torch.ops.load_library",
        "torch.ops.aten.__class__",
        "torch.ops.aten.__class__.mro",
        "torch.ops.aten.add.__init__",
        "torch.ops.higher_order.call_torchbind",
        "_operator.methodcaller",
        "torch.ops.aten.add.Tensor.redispatch",
        "math.sqrt",
        "",
    ],
)
def test_what_is_no_operator_is_not_called(tmp_path: Path, target: str) -> None:
    with pytest.raises(GateError, match="VIDC-PORTABLE-CODE"):
        refuse_code(program(tmp_path, call(target)))
    nested = {"as_operator": target}
    with pytest.raises(GateError, match="VIDC-PORTABLE-CODE"):
        refuse_code(program(tmp_path, [{"arg": nested}]))


@pytest.mark.parametrize(
    "graph",
    [
        {"guards_code": ["__import__('os')"]},
        {"range_constraints": {"s0": {"min_val": 1, "max_val": 2}}},
        {"sizes": [{"as_expr": {"expr_str": "s0", "hint": None}}]},
        "{",
        "[" * 100_000,
    ],
    ids=["guards", "ranges", "expression", "no json", "deep"],
)
def test_what_is_not_static_is_refused(tmp_path: Path, graph: Any) -> None:
    with pytest.raises(GateError, match="VIDC-PORTABLE-CODE"):
        refuse_code(program(tmp_path, graph))


def test_a_pickle_is_refused(tmp_path: Path) -> None:
    file = program(tmp_path, call("torch.ops.aten.add.Tensor"))
    refuse_code(file)
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("archive/data/sample_inputs/model.pt", b"pickled")
    with pytest.raises(GateError, match="VIDC-BUNDLE-PICKLE"):
        refuse_code(file)


def test_what_vidc_exports_is_accepted(tmp_path: Path) -> None:
    encoder = TextEncoderConfig(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4
    )
    small = ("model.layers=1", "vae.res_blocks=1")
    settings = resolve("tiny", gpu="cpu", assignments=small, environ={})
    model = replace(settings.model, text_encoder=encoder)
    for group in set(model.components.values()):
        network = model.parts[group].network("fp32")
        for name, component in model.parts[group].components(network).items():
            save_program(export_program(component), tmp_path / f"{name}.pt2")
            refuse_code(tmp_path / f"{name}.pt2")
