import pytest

from vidc.compiler.backends.onnxruntime import backend as module
from vidc.compiler.backends.onnxruntime.backend import backend
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.runtime.engines.onnxruntime import CUDA


@pytest.mark.parametrize(
    ("target", "precisions"),
    [
        ("cpu", {"fp32", "fp16", "int8"}),
        ("h200", {"fp32", "fp16"}),
        ("rtx4090", {"fp32", "fp16"}),
        ("t4", {"fp32", "fp16"}),
    ],
)
def test_precisions_by_device(target, precisions):
    assert backend.precisions(targets()[target]) == precisions


def test_default_backend_for_cpu_only():
    assert resolve("tiny", gpu="cpu", environ={}).backend == "onnxruntime"
    assert resolve("tiny", gpu="h200", precision="bf16", environ={}).backend == "aoti"


def test_a_graph_for_a_gpu_is_written_without_one(monkeypatch):
    monkeypatch.setattr(module, "gpu_unavailable", lambda target: "torch finds no CUDA device here")
    assert backend.cross_compiles(targets()["h200"])
    assert backend.unavailable(targets()["h200"]) is None
    assert backend.unavailable(targets()["cpu"]) is None


def test_missing_gpu_package_is_named_before_build(monkeypatch):
    monkeypatch.setattr(module, "gpu_unavailable", lambda target: None)
    reason = backend.unavailable(targets()["h200"])
    assert reason is not None
    assert "has no CUDA" in reason
    assert "install onnxruntime-gpu" in reason
    providers = [CUDA, "CPUExecutionProvider"]
    monkeypatch.setattr(module.onnxruntime, "get_available_providers", lambda: providers)
    assert backend.unavailable(targets()["h200"]) is None
    assert backend.unavailable(targets()["cpu"]) is None


def test_tools_are_packages_that_write_graphs():
    assert set(backend.tools(targets()["cpu"])) == {"onnxruntime", "onnx-ir"}
    on_gpu = backend.tools(targets()["h200"])
    assert set(on_gpu) == {"onnxruntime", "torch", "onnx", "onnxscript", "onnx-ir"}
