import ctypes
from ctypes.util import find_library
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vidc.plugins import cuda_driver
from vidc.plugins.errors import UnavailableError

INVALID_VALUE = 1


class Driver:
    """A driver that returns one result for every call and records the arguments."""

    def __init__(self, result=0):
        self.result = result
        self.calls = []

    def cuTensorMapEncodeTiled(self, *arguments):  # noqa: N802
        self.calls.append(arguments)
        return self.result

    def cuGetErrorName(self, result, name):  # noqa: N802
        name._obj.value = f"CUDA_ERROR_{result}".encode()
        return 0


@pytest.fixture
def use(monkeypatch):
    def use(driver):
        monkeypatch.setattr(cuda_driver, "_driver", lambda: driver)
        return driver

    return use


def encode(**changes):
    arguments = {
        "address": 1 << 32,
        "dtype": torch.bfloat16,
        "sizes": (128, 300, 12, 2),
        "strides": (3072, 256, 921600),
        "box": (64, 128, 1, 1),
    }
    return cuda_driver.TensorMap(**arguments | changes)


def test_tensor_map_passes_the_arguments_that_cuda_declares(use):
    driver = use(Driver())
    made = encode(dtype=torch.float16)
    (call,) = driver.calls
    where, kind, rank, address, sizes, strides, box, steps, *modes = call
    assert where.value == made.address
    assert (kind, rank, address.value) == (6, 4, 1 << 32)
    assert [list(values) for values in (sizes, strides, box, steps)] == [
        [128, 300, 12, 2], [3072, 256, 921600], [64, 128, 1, 1], [1, 1, 1, 1],
    ]  # fmt: skip
    assert [values._type_ for values in (sizes, strides, box, steps)] == [
        ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32,
    ]  # fmt: skip
    # No interleave, swizzled by 128 bytes, 128 bytes into the L2, zeros beyond the tensor.
    assert modes == [0, 3, 2, 0]
    encode(dtype=torch.bfloat16)
    assert driver.calls[1][1] == 9


@given(count=st.integers(1, 40))
def test_tensor_maps_are_aligned_and_do_not_overlap(count):
    driver = Driver()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_driver, "_driver", lambda: driver)
        maps = [encode() for _ in range(count)]
    addresses = sorted(made.address for made in maps)
    assert all(address % 64 == 0 for address in addresses)
    assert all(b - a >= 128 for a, b in pairwise(addresses))
    for made in maps:
        start = ctypes.addressof(made._memory)
        assert start <= made.address <= start + ctypes.sizeof(made._memory) - 128


def test_failed_driver_call_is_named(use):
    use(Driver(INVALID_VALUE))
    with pytest.raises(UnavailableError, match=r"cuTensorMapEncodeTiled.*CUDA_ERROR_1") as caught:
        encode()
    assert caught.value.code == "VIDC-KERNEL-DRIVER"


def test_function_missing_in_an_older_driver_is_named(use):
    use(Driver())
    with pytest.raises(UnavailableError, match="no cuFuncLoad") as caught:
        cuda_driver.call("cuFuncLoad", None)
    assert caught.value.code == "VIDC-KERNEL-DRIVER"


@pytest.mark.skipif(find_library("cuda") is not None, reason="this machine has a CUDA driver")
def test_missing_driver_is_reported():
    with pytest.raises(UnavailableError, match="libcuda") as caught:
        cuda_driver.call("cuInit", 0)
    assert caught.value.code == "VIDC-KERNEL-DRIVER"


@pytest.mark.parametrize(("number", "version"), [(13000, (13, 0)), (12040, (12, 4))])
def test_driver_version(use, number, version):
    class Versioned(Driver):
        def cuDriverGetVersion(self, pointer):  # noqa: N802
            pointer._obj.value = number
            return 0

    use(Versioned())
    assert cuda_driver.driver_version() == version


def test_driver_version_is_none_without_a_driver(monkeypatch):
    def missing():
        raise UnavailableError("VIDC-KERNEL-DRIVER", "cannot be loaded", "install it")

    monkeypatch.setattr(cuda_driver, "_driver", missing)
    assert cuda_driver.driver_version() is None
