"""Bundles in 8 bits: built, changed by hand, and held to the thresholds of untrained weights."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from vidc.compiler.build.build import whole
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.store.workers import Workers
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import write_weights
from vidc.plugins.signature import TensorSpec
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import read_manifest, write_manifest

LAYERS = {"text_kv": 4, "denoise": 16, "kv_update": 10}
"""Linears of the recipe that a component of two layers has."""


@contextmanager
def untrained() -> Iterator[None]:
    """Validates weights as untrained: the project's come from files, but nobody trained them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vidc.compiler.validate.check._trained", lambda manifest: False)
        # Another process would not see this.
        patch.setattr(Workers, "call", lambda pool, name, function, *given: function(*given))
        yield


def build_8bit(project: Any, calibration: Path, output: Path, **flags: str) -> Path:
    """Builds the project's bundle with a calibration."""
    settings, sources = project.resolve(**flags)
    sources = replace(sources, calibration=calibration)
    with untrained():
        return whole(settings, sources).run(output, project.cache, LineProgress()).output


def overwrite(bundle: Path, path: Path, tensors: dict[str, Tensor]) -> None:
    """Writes a weights file of a bundle, and a manifest of the files as they are."""
    write_weights(path, {name: LazyTensor.of(tensor) for name, tensor in tensors.items()})
    manifest = read_manifest(bundle)
    files = {name: file_entry(bundle / name) for name in manifest.files}
    write_manifest(replace(manifest, files=files), bundle)


def rings(bundle: Path) -> tuple[list[TensorSpec], int]:
    """Returns the window's keys and values as a bundle's manifest has them, and their bytes."""
    states = {
        state.name: state
        for engine in read_manifest(bundle).engines.values()
        for state in engine.signature.states
        if state.name.startswith("ring.")
    }
    taken = (math.prod(s.shape) * s.torch_dtype.itemsize for s in states.values())
    return [*states.values()], sum(taken)
