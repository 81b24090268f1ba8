"""The search for TensorRT's headers, and the message if there are none."""

import plugin_build
import pytest

TOOL = next((tool for tool in plugin_build.TOOLS if plugin_build.shutil.which(tool) is None), None)
pytestmark = pytest.mark.skipif(TOOL is not None, reason=f"there is no {TOOL}")
OUT = "libvidc_plugins.so is left out: there are no headers of TensorRT 10.13 or newer"


def version(major, minor):
    return f"""
#define TRT_MAJOR_ENTERPRISE {major}
#define TRT_MINOR_ENTERPRISE {minor}
#define NV_TENSORRT_MAJOR TRT_MAJOR_ENTERPRISE //!< TensorRT major version.
"""


@pytest.fixture
def configured(tmp_path, monkeypatch):
    """Returns CMake's output for settings and environment variables."""
    for name in ("VIDC_TENSORRT_INCLUDE", "TensorRT_ROOT"):
        monkeypatch.delenv(name, raising=False)

    def configured(*settings, **environment):
        for name, value in environment.items():
            monkeypatch.setenv(name, str(value))
        return " ".join(plugin_build.configure(tmp_path / "build", *settings).split())

    return configured


@pytest.fixture
def headers(tmp_path):
    """Makes a folder of headers of a version."""

    def headers(said):
        include = tmp_path / "include"
        include.mkdir()
        (include / "NvInferVersion.h").write_text(said)
        return include

    return headers


def test_plugins_need_headers(configured, tmp_path):
    assert OUT in configured()
    assert OUT in configured(f"-DVIDC_TENSORRT_INCLUDE={tmp_path / 'none'}")


@pytest.mark.parametrize("said", [version(10, 12), "#define NV_TENSORRT_MAJOR 8\n", ""])
def test_plugins_need_recent_headers(configured, headers, said):
    assert OUT in configured(f"-DVIDC_TENSORRT_INCLUDE={headers(said)}")


def test_headers_are_found_by_either_variable(configured, headers):
    include = headers(version(10, 13))
    assert f": headers of TensorRT 10.13, {include}" in configured(TensorRT_ROOT=include.parent)
    (include / "NvInferVersion.h").write_text(version(11, 1))
    found = configured("-UVIDC_TENSORRT_INCLUDE", VIDC_TENSORRT_INCLUDE=include)
    assert f": headers of TensorRT 11.1, {include}" in found
    assert "headers of TensorRT 11.1" in configured(f"-DTensorRT_ROOT={include.parent}")
