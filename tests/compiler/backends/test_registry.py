"""A backend is one folder in the backends' package: nothing else lists it."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from vidc.compiler import backends
from vidc.compiler.build.compile import Compile, read_engine, read_notes
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import stages
from vidc.compiler.config.backend import BUILDERS
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.doctor.probes import probe_backends
from vidc.compiler.quantize.support import QuantizationSupport
from vidc.compiler.store.stage import Workspace
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import weight_layout, write_weights
from vidc.exporters.component import Component
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.program import export_program
from vidc.plugins.errors import UsageError
from vidc.plugins.signature import Role, Signature, TensorSpec
from vidc.runtime import manifest
from vidc.runtime.engines import loader
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

NAME = "unoptimized"
SOURCE = """
import shutil

from vidc.compiler.backends import Backend, CompiledEngine
from vidc.compiler.quantize.support import ONNX
from vidc.runtime.manifest import Requirements


class Unoptimized(Backend):
    def quantization(self, target):
        return ONNX

    def precisions(self, target):
        return frozenset() if target.is_gpu else frozenset({"fp32"})

    def tools(self, target):
        return {"unoptimized": "7"}

    def unavailable(self, target):
        return "for CPUs alone" if target.is_gpu else None

    def compile(self, component, target, kernels, output, options):
        shutil.copyfile(component.onnx, output / component.onnx.name)
        return CompiledEngine(
            loader="onnxruntime",
            version="7",
            files=(component.onnx.name,),
            signature=component.signature,
            options={"graph_optimization_level": "ORT_DISABLE_ALL", "disable_prepacking": True},
            requires=Requirements(torch="2.11.0", cpu_features=(), operators=()),
            notes=("it is as it was exported",),
        )


backend = Unoptimized()
"""
CPU = torch.device("cpu")
SIGNATURE = Signature(
    (
        TensorSpec("x", (1, 2, 2), "float32", Role.INPUT),
        TensorSpec("y", (1, 2, 2), "float32", Role.OUTPUT),
    )
)


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.toy = nn.ModuleDict({"linear": nn.Linear(2, 2)})

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (self.toy["linear"](x),)


@pytest.fixture(autouse=True)
def third_backend(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("backends")
    (folder / NAME).mkdir()
    (folder / NAME / "__init__.py").touch()
    (folder / NAME / "backend.py").write_text(SOURCE)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(folder)])
    monkeypatch.setitem(BUILDERS, NAME, partial(backends.backend, NAME))
    yield
    for module in (NAME, f"{NAME}.backend"):
        sys.modules.pop(f"{backends.__name__}.{module}", None)


def test_toy_backend_is_listed() -> None:
    assert backends.names() == ("aoti", "onnxruntime", "tensorrt", "torch_tensorrt", NAME)
    assert f"backend {NAME}" in {finding.name for finding in probe_backends()}
    with pytest.raises(UsageError) as caught:
        backends.backend("unoptimzed")
    assert NAME in caught.value.hint


def test_every_backend_registers_with_the_settings() -> None:
    code = """
import sys
from vidc.compiler import backends
from vidc.compiler.config.backend import BUILDERS
assert tuple(BUILDERS) == backends.names()
assert not [name for name in sys.modules if name.startswith("vidc.compiler.backends.")]
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_settings_and_stages_accept_toy_backend() -> None:
    settings = resolve("tiny", gpu="cpu", backend=NAME, environ={})
    assert settings.backend == NAME
    compiled = next(s for s in stages(settings, Sources({}, seed=1)) if s.name == "compile:denoise")
    assert compiled.key().tools() == {"unoptimized": "7"}
    assert f"{backends.__name__}.{NAME}.backend" in compiled.key().entries


def test_compiled_component_runs_in_loader(tmp_path: Path) -> None:
    export, bundle = tmp_path / "export", tmp_path / "bundle"
    for folder in (export, bundle / "weights"):
        folder.mkdir(parents=True)
    module = Toy().requires_grad_(False)
    linear = module.toy["linear"].state_dict()
    weights = {f"linear.{name}": LazyTensor.of(tensor) for name, tensor in linear.items()}
    write_weights(bundle / "weights" / "toy.safetensors", weights)
    exported = ExportedComponent("toy", export, SIGNATURE)
    program = export_program(Component("toy", module, SIGNATURE))
    export_onnx("toy", program, SIGNATURE, {"toy": weight_layout(weights)}, exported.onnx)
    exported.write_signature()

    workspace = Workspace(bundle, {"export:toy": export}, print)
    Compile("toy", "fp32", "export:toy", {}, NAME, targets()["cpu"], {}).run(workspace)
    document = dict(read_engine(bundle))
    assert read_notes(bundle) == ("it is as it was exported",)
    entry: manifest.Engine = read({**document, "precision": "fp32"}, manifest.Engine, "engine")
    assert (entry.backend, entry.loader) == (NAME, "onnxruntime")
    assert entry.requires.torch == "2.11.0"

    engine = loader(entry.loader)(Files(bundle), entry, Weights({}, CPU), CPU)
    buffers = Buffers(engine.signature, CPU)
    x = torch.randn(1, 2, 2)
    buffers.set({"x": x})
    engine.run(buffers, States([engine.signature], CPU))
    torch.testing.assert_close(buffers["y"], module(x)[0])


@pytest.mark.parametrize("name", backends.names())
def test_every_backend_declares_quantization_support(name):
    made = backends.backend(name)
    for target in targets().values():
        if made.precisions(target):
            assert isinstance(made.quantization(target), QuantizationSupport)
