from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnx_ir as ir
import onnxruntime
import pytest
import torch

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import weight_layout, write_weights
from vidc.exporters.component import Component
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.program import export_program
from vidc.plugins.signature import Signature


@dataclass
class Exported:
    """A component's ONNX file beside its weights, and the eager component."""

    component: Component
    path: Path

    @property
    def model(self) -> ir.Model:
        return ir.load(self.path)


Export = Callable[..., Exported]
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def run_onnx() -> Callable[[Path, Signature, Tensors], Tensors]:
    """Runs a file on a CPU: named values, which may be more than it takes, to all its outputs."""

    def run(path: Path, signature: Signature, values: Tensors) -> Tensors:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        inputs = {name: values[name].numpy() for name in signature.graph_inputs()}
        names = signature.graph_outputs()
        results = session.run(names, inputs)
        return dict(zip(names, map(torch.from_numpy, results), strict=True))

    return run


@pytest.fixture(scope="session")
def export(make_wan, tmp_path_factory) -> Export:
    """Exports a component of ``make_wan(**sizes)`` with its weights, once a session."""

    @cache
    def folder(**sizes) -> tuple:
        wan = make_wan(**sizes)
        path = tmp_path_factory.mktemp("bundle")
        (path / "weights").mkdir()
        weights = {name: LazyTensor.of(w) for name, w in wan.network.state_dict().items()}
        write_weights(path / "weights" / "transformer.safetensors", weights)
        return wan, path, {"transformer": weight_layout(weights)}

    @cache
    def make(name: str, **sizes) -> Exported:
        wan, path, placements = folder(**sizes)
        component = wan.components[name]
        file = path / f"{name}.onnx"
        export_onnx(name, export_program(component), component.signature, placements, file)
        return Exported(component, file)

    return make
