from types import SimpleNamespace

import pytest

from vidc.compiler import backends

PRECISIONS = {
    "onnxruntime": {"cpu": {"fp32", "fp16", "int8"}, "cuda": set()},
    "aoti": {"cpu": {"fp32", "bf16"}, "cuda": {"fp32", "fp16", "bf16", "fp8", "int8"}},
}


@pytest.fixture(autouse=True)
def known_backends(monkeypatch):
    """Two backends that build what this table says, whatever is installed."""

    def backend(name):
        builds = PRECISIONS[name]
        return SimpleNamespace(
            precisions=lambda target: frozenset(builds[target.device_type]),
            unavailable=lambda target: f"it serves no {target.device_type}",
        )

    monkeypatch.setattr(backends, "names", lambda: tuple(sorted(PRECISIONS)))
    monkeypatch.setattr(backends, "backend", backend)
