"""Finding the library of TensorRT's plugins; what it holds is in test_tensorrt_plugins.py."""

from types import SimpleNamespace

import pytest
from shared_library import shared_library

from vidc.plugins import tensorrt_library
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError

ABI = "int vidc_plugin_abi(void) {{ return {}; }}"


class Product(SimpleNamespace):
    """TensorRT's module, of which the registry alone is there."""

    __hash__ = object.__hash__

    def __init__(self):
        super().__init__(loaded=[])

    def get_plugin_registry(self):
        return SimpleNamespace(load_library=self.loaded.append)


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Puts a library of a source in the package's place; its path."""

    def library(source):
        path = shared_library(source, tmp_path / tensorrt_library.NAME)
        monkeypatch.setattr(tensorrt_library, "files", lambda package: tmp_path)
        return path

    return library


def test_tensorrt_is_given_the_library_once(library):
    path, product = library(ABI.format(PLUGIN_ABI)), Product()
    assert tensorrt_library.fault() is None
    for _ in range(2):
        tensorrt_library.register(product)
    assert product.loaded == [str(path)]


@pytest.mark.parametrize(
    ("source", "code", "says"),
    [
        (ABI.format(PLUGIN_ABI + 1), "VIDC-KERNEL-ABI", f"ABI {PLUGIN_ABI + 1}, this vidc has"),
        ("int other(void) { return 1; }", "VIDC-KERNEL-LIBRARY", "vidc_plugin_abi"),
    ],
)
def test_another_library_is_refused_before_tensorrt_has_it(library, source, code, says):
    library(source)
    product = Product()
    with pytest.raises(UnavailableError) as caught:
        tensorrt_library.register(product)
    assert caught.value.code == code
    assert says in caught.value.message
    assert product.loaded == []


def test_one_that_is_missing_is_named_with_how_to_build_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tensorrt_library, "files", lambda package: tmp_path)
    fault = tensorrt_library.fault()
    assert fault is not None
    assert fault.code == "VIDC-KERNEL-LIBRARY"
    assert "libvidc_plugins.so, is not installed" in fault.message
    assert "VIDC_TENSORRT_INCLUDE=" in fault.hint
