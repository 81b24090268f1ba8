"""A stream of one small layer, for engines of whole components."""

from functools import cache

import pytest
import small_taehv

from vidc.compiler.build.load import Load
from vidc.compiler.config.resolve import resolve
from vidc.compiler.store.stage import Workspace
from vidc.exporters.export import export_component
from vidc.plugins.names import weights_path

SMALL = (
    "model.layers=1",
    "stream.height=16",
    "stream.width=32",
    "stream.window=9",
    "vae.kind=taehv",
    *small_taehv.SIZES,
    "sampler.steps=[1000, 500]",
)


@pytest.fixture(scope="session")
def config():
    return resolve("tiny", gpu="cpu", assignments=SMALL, environ={}).model


@pytest.fixture(scope="session")
def exported(config, tmp_path_factory):
    """Exports a component of the stream in float32, once for all engines."""

    @cache
    def export(name):
        folder = tmp_path_factory.mktemp(f"exported_{name}")
        part = config.parts[config.components[name]]
        return export_component(part, "fp32", name, folder)

    return export


@pytest.fixture(scope="session")
def weights(config, tmp_path_factory):
    files = {}
    for group in config.parts:
        folder = tmp_path_factory.mktemp(group)
        load = Load(config.parts[group], type(config), "fp32", 1)
        load.run(Workspace(folder, {}, print))
        files[group] = folder / weights_path(group)
    return files
