import shutil
from pathlib import Path

import fused_on_cpu
import plugin_build
import pytest
from plugin_host import Host


@pytest.fixture(scope="module", params=plugin_build.HEADERS or [""], ids=plugin_build.named)
def built(request) -> Path:
    return plugin_build.build(request.param)


@pytest.fixture(scope="session")
def built_for_cpu(tmp_path_factory) -> Path:
    """The fused operators' kernels for a CPU."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    return fused_on_cpu.compiled(tmp_path_factory.mktemp("fused"))


@pytest.fixture(scope="module")
def host(built) -> Host:
    return Host(built / plugin_build.LIBRARY, built / plugin_build.HOST)


H200 = (9, 132)
"""Compute capability and multiprocessors."""


def record(folder: Path) -> Host:
    host = Host(folder / plugin_build.RECORDED, folder / plugin_build.HOST)
    host.recorder.recorded_begin(*H200)
    return host


@pytest.fixture
def recorded(built) -> Host:
    """Plugins whose launches are recorded and not made."""
    return record(built)


@pytest.fixture
def recorded_for_turing() -> Host:
    """The same, without the kernel that is for Hopper alone."""
    return record(plugin_build.build(plugin_build.HEADERS[0], "75"))
