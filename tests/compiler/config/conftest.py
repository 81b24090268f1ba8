from types import SimpleNamespace

import pytest

from vidc.compiler.config.backend import BUILDERS

PRECISIONS = {
    "onnxruntime": {"cpu": {"fp32", "fp16", "int8"}, "cuda": set()},
    "aoti": {"cpu": {"fp32", "bf16"}, "cuda": {"fp32", "fp16", "bf16", "fp8", "int8"}},
}


@pytest.fixture
def register(monkeypatch):
    """Registers backends in place of those there are: precisions for a target, by name."""

    def replace(found):
        for name in [*BUILDERS]:
            monkeypatch.delitem(BUILDERS, name)
        for name, precisions in found.items():
            made = SimpleNamespace(
                precisions=precisions,
                unavailable=lambda target: f"it serves no {target.device_type}",
            )
            monkeypatch.setitem(BUILDERS, name, lambda made=made: made)

    return replace


@pytest.fixture(autouse=True)
def known_backends(register):
    """Two backends that build what this table says, whatever is installed."""
    register(
        {
            name: lambda target, builds=builds: frozenset(builds[target.device_type])
            for name, builds in PRECISIONS.items()
        }
    )
