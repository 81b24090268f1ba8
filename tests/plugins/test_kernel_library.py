"""Finding, checking and loading the library; what is built and bound is in test_cuda_build.py."""

import ctypes

import pytest
import torch
from shared_library import shared_library

from vidc.plugins import kernel_library
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError
from vidc.plugins.gelu_quantize import gelu_quantize

CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
HERE = kernel_library.fault() is None


@pytest.fixture
def compiled(tmp_path):
    """A library of C functions."""
    return lambda source: shared_library(source, tmp_path / kernel_library.NAME)


@pytest.mark.skipif(HERE, reason="the library of kernels is installed")
def test_on_cuda_an_operator_says_what_it_lacks_and_how_to_get_it():
    with pytest.raises(UnavailableError) as caught:
        gelu_quantize.redispatch(CUDA, torch.zeros(1, 1, 8), "float32")
    assert caught.value.code == "VIDC-KERNEL-LIBRARY"
    assert "vidc::gelu_quantize has no kernel for CUDA tensors" in caught.value.message
    assert "VIDC_CUDA=1 pip install" in caught.value.hint


@pytest.fixture
def installed_at(monkeypatch):
    """The package's folder is another one."""

    def installed_at(folder):
        monkeypatch.setattr(kernel_library, "files", lambda package: folder)
        kernel_library.fault.cache_clear()

    yield installed_at
    monkeypatch.undo()
    kernel_library.fault.cache_clear()


def test_a_file_that_is_no_library_is_named(tmp_path, installed_at):
    (tmp_path / kernel_library.NAME).write_text("text")
    installed_at(tmp_path)
    found = kernel_library.fault()
    assert found is not None
    assert found.code == "VIDC-KERNEL-LIBRARY"
    assert str(tmp_path) in found.message


def test_a_library_of_something_else_is_refused(compiled):
    with pytest.raises(UnavailableError, match="vidc_plugin_abi") as caught:
        kernel_library.load(compiled("int other(void) { return 1; }"))
    assert caught.value.code == "VIDC-KERNEL-LIBRARY"


LIBRARY = """
int vidc_plugin_abi(void) {{ return {abi}; }}
int registered = 0;
void vidc_register_torch_operators(void) {{ registered = 1; }}
"""


def test_a_library_of_another_abi_is_refused_before_it_registers_anything(compiled):
    library = compiled(LIBRARY.format(abi=PLUGIN_ABI + 1))
    with pytest.raises(UnavailableError, match=f"ABI {PLUGIN_ABI + 1}, .* {PLUGIN_ABI}") as caught:
        kernel_library.load(library)
    assert caught.value.code == "VIDC-KERNEL-ABI"
    assert ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "registered").value == 0


def test_a_library_of_this_abi_is_registered_once(compiled, tmp_path, installed_at):
    library = compiled(LIBRARY.format(abi=PLUGIN_ABI))
    installed_at(tmp_path)
    assert kernel_library.fault() is None
    registered = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "registered")
    assert registered.value == 1
    registered.value = 0
    assert kernel_library.fault() is None
    assert registered.value == 0
