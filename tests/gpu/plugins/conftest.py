import pytest

from vidc.plugins import kernel_library


@pytest.fixture(scope="session")
def library(gpu):
    """The device, where the library of kernels is there to serve it."""
    fault = kernel_library.fault()
    if fault is not None:
        pytest.skip(fault.message)
    return gpu
