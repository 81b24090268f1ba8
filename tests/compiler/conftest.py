"""Bundles and graphs made by hand, for tests that look into them and run nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from entries import file_entries
from safetensors.torch import save_file

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.signature import Access, Role, Signature, TensorSpec
from vidc.runtime.manifest import (
    PORTABLE,
    Engine,
    Manifest,
    Target,
    Validation,
    Weights,
    write_manifest,
)
from vidc.runtime.programs.stream import StreamSpec

RING = TensorSpec("ring.k.0", (1, 32, 2, 8), "float32", Role.STATE, Access.READ_WRITE)
STREAM = StreamSpec(
    batch=1, block=3, window=6, sink=3, frame_tokens=2, grid=(1, 2), latent=(4, 2, 4),
    video=(16, 32), head_dim=8, text=(8, 16), timesteps=(1000.0,), sigmas=(1.0,),
    context_timestep=0.0, pending="kv_update",
)  # fmt: skip


def _engine(name: str, *tensors: TensorSpec) -> Engine:
    return Engine(
        "onnxruntime", "onnxruntime", "1.31.0", "fp32", (f"{name}.onnx",), Signature(tensors), {},
        PORTABLE,
    )  # fmt: skip


def _manifest(folder: Path) -> Manifest:
    return Manifest(
        name="tiny-cpu-fp32",
        preset="tiny",
        family="causal_video",
        config={"stream": {"window": 6, "sink": 3}},
        program="causal_video",
        spec=STREAM,
        target=Target("cpu", None, 0),
        engines={
            "denoise": _engine(
                "denoise",
                TensorSpec("latent", (1, 3, 4, 2, 4), "bfloat16", Role.INPUT),
                RING,
                TensorSpec("flow", (1, 3, 4, 2, 4), "float32", Role.OUTPUT),
            ),
            "kv_update": _engine("kv_update", replace(RING, in_place=True)),
        },
        weights={"transformer": Weights("weights/transformer.safetensors", {"random_weights": 7})},
        files=file_entries(folder),
        plugin_abi=PLUGIN_ABI,
        calibration=None,
        tools={"torch": "2.13.0", "vidc": "0.1.0"},
        validation=Validation(
            passed=True, gates=12, report="report.html", level="rollout", working_bytes=9
        ),
        stages={"export:denoise": "e" * 64},
    )


@pytest.fixture
def make_bundle(tmp_path):
    """Makes a valid bundle in a folder of this name, with other weights or manifest fields."""

    def make(place="bundle", weights=None, report="", **fields):
        folder = tmp_path / place
        (folder / "weights").mkdir(parents=True)
        for component in ("denoise", "kv_update"):
            (folder / f"{component}.onnx").write_bytes(b"graph")
        (folder / "report.html").write_text(report)
        save_file(
            weights or {"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)},
            folder / "weights/transformer.safetensors",
        )
        write_manifest(replace(_manifest(folder), **fields), folder)
        return folder

    return make


@pytest.fixture
def make_graph(tmp_path):
    """Saves an ONNX graph ``y = f(x + w) + c`` in a file of this name."""
    from onnx import TensorProto, helper, numpy_helper, save_model

    def make(name="graph.onnx", operator="Relu", domain="", offset=8, constant=1.0):
        weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[2, 3])
        weight.data_location = TensorProto.EXTERNAL
        for key, value in (("location", "weights/w.safetensors"), ("offset", offset)):
            weight.external_data.add(key=key, value=str(value))
        graph = helper.make_graph(
            [
                helper.make_node("Add", ["x", "w"], ["sum"]),
                helper.make_node(operator, ["sum"], ["f"], "f", domain=domain),
                helper.make_node("Add", ["f", "c"], ["y"]),
            ],
            "small",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None, 3])],
            [
                weight,
                numpy_helper.from_array(torch.full((3,), constant).numpy(), "c"),
            ],
        )
        path = tmp_path / name
        opsets = [helper.make_opsetid("", 24)]
        save_model(helper.make_model(graph, opset_imports=opsets, producer_name="test"), path)
        return path

    return make
