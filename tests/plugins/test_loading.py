"""Finding, checking and loading of the two native libraries."""

import ctypes
from types import SimpleNamespace

import pytest
import torch
from shared_library import shared_library

from vidc.plugins import loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError
from vidc.plugins.ops.gelu_quantize import gelu_quantize

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
INSTALLED = loading.torch_library_error() is None
ABI = "int vidc_plugin_abi(void) {{ return {}; }}\n"
TORCH = (
    ABI
    + """
int registered = 0;
void vidc_register_torch_operators(void) {{ registered = 1; }}
"""
)
OTHER = "int other(void) { return 1; }"


class TensorRT(SimpleNamespace):
    """TensorRT's module with nothing but a plugin registry."""

    __hash__ = object.__hash__

    def __init__(self):
        super().__init__(loaded=[])

    def get_plugin_registry(self):
        creators = {("gelu_quantize", "1", "vidc"): object()}
        return SimpleNamespace(
            load_library=self.loaded.append,
            get_creator=lambda *named: creators.get(named),
        )


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder that stands for the package's."""
    monkeypatch.setattr(loading, "files", lambda package: tmp_path)
    loading.torch_library_error.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    loading.torch_library_error.cache_clear()


@pytest.mark.skipif(INSTALLED, reason="the library of kernels is installed")
def test_operator_on_cuda_without_library_says_how_to_build_it():
    with pytest.raises(UnavailableError) as caught:
        gelu_quantize.redispatch(CUDA, torch.zeros(1, 1, 8), "float32")
    assert caught.value.code == "VIDC-KERNEL-LIBRARY"
    assert "vidc::gelu_quantize has no kernel for CUDA tensors" in caught.value.message
    assert "VIDC_CUDA=1 pip install" in caught.value.hint


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (loading.torch_library_error, "libvidc_torch.so, is not installed", "VIDC_CUDA=1"),
        (
            loading.tensorrt_library_error,
            "libvidc_plugins.so, is not installed",
            "VIDC_TENSORRT_INCLUDE=",
        ),
    ],
)
def test_missing_library_is_named_with_its_build_command(folder, error, message, hint):
    found = error()
    assert found is not None
    assert found.code == "VIDC-KERNEL-LIBRARY"
    assert message in found.message
    assert hint in found.hint


def test_rejects_file_that_is_not_a_library(folder):
    (folder / loading.TORCH_LIBRARY).write_text("text")
    found = loading.torch_library_error()
    assert found is not None
    assert found.code == "VIDC-KERNEL-LIBRARY"
    assert str(folder) in found.message


@pytest.mark.parametrize(
    ("source", "function"),
    [
        (OTHER, "vidc_plugin_abi"),
        (ABI.format(PLUGIN_ABI), "vidc_register_torch_operators"),
    ],
)
def test_rejects_torch_library_without_the_functions(tmp_path, source, function):
    library = shared_library(source, tmp_path / loading.TORCH_LIBRARY)
    with pytest.raises(UnavailableError, match=function) as caught:
        loading.load_torch_library(library)
    assert caught.value.code == "VIDC-KERNEL-LIBRARY"


def test_rejects_torch_library_of_another_abi_before_it_registers(tmp_path):
    source = TORCH.format(PLUGIN_ABI + 1)
    library = shared_library(source, tmp_path / loading.TORCH_LIBRARY)
    with pytest.raises(UnavailableError, match=f"ABI {PLUGIN_ABI + 1}, .* {PLUGIN_ABI}") as caught:
        loading.load_torch_library(library)
    assert caught.value.code == "VIDC-KERNEL-ABI"
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "registered").value == 0


def test_torch_library_is_registered_once(folder):
    library = shared_library(TORCH.format(PLUGIN_ABI), folder / loading.TORCH_LIBRARY)
    assert loading.torch_library_error() is None
    registered = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "registered")
    assert registered.value == 1
    registered.value = 0
    assert loading.torch_library_error() is None
    assert registered.value == 0


def test_tensorrt_plugins_are_registered_once(folder):
    path = shared_library(ABI.format(PLUGIN_ABI), folder / loading.TENSORRT_LIBRARY)
    module = TensorRT()
    assert loading.tensorrt_library_error() is None
    for _ in range(2):
        loading.register_tensorrt_plugins(module, ["gelu_quantize"])
    assert module.loaded == [str(path)]


def test_rejects_tensorrt_library_without_a_plugin_of_the_network(folder):
    shared_library(ABI.format(PLUGIN_ABI), folder / loading.TENSORRT_LIBRARY)
    with pytest.raises(UnavailableError, match="has no plugin ring_attention_16bit") as caught:
        loading.register_tensorrt_plugins(TensorRT(), ["gelu_quantize", "ring_attention_16bit"])
    assert caught.value.code == "VIDC-KERNEL-LIBRARY"


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        (ABI.format(PLUGIN_ABI + 1), "VIDC-KERNEL-ABI", f"ABI {PLUGIN_ABI + 1}, this vidc has"),
        (OTHER, "VIDC-KERNEL-LIBRARY", "vidc_plugin_abi"),
    ],
)
def test_rejects_tensorrt_library_before_tensorrt_loads_it(folder, source, code, message):
    shared_library(source, folder / loading.TENSORRT_LIBRARY)
    module = TensorRT()
    with pytest.raises(UnavailableError, match=message) as caught:
        loading.register_tensorrt_plugins(module, [])
    assert caught.value.code == code
    assert module.loaded == []
