"""Whether the library's kernels serve a device, told without a GPU: what tries them is replaced."""

import pytest
import torch

from vidc.plugins import engine_operators, kernel_library
from vidc.plugins.errors import UnavailableError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def library(monkeypatch):
    """Makes the library be there, and a GPU, whose kernels do what a function does."""
    engine_operators.fault.cache_clear()

    def library(run):
        monkeypatch.setattr(kernel_library, "fault", lambda: None)
        monkeypatch.setattr(engine_operators, "_try_all", run)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA T4")

    yield library
    engine_operators.fault.cache_clear()


def raising(text):
    def run(device):
        raise RuntimeError(text)

    return run


def test_a_cpu_needs_no_library(library):
    library(raising("tried"))
    assert engine_operators.fault(CPU) is None


def test_what_is_tried_is_every_operator_as_it_is_on_a_cpu():
    """Its arguments are those that kernels take, too: both make the same checks."""
    engine_operators._try_all(CPU)
    assert list(engine_operators.OPERATORS) == sorted(engine_operators.OPERATORS)
    for name in engine_operators.OPERATORS:
        assert hasattr(torch.ops.vidc, name)


def test_a_missing_library_is_what_is_wrong(library, monkeypatch):
    library(raising("tried"))
    missing = UnavailableError("VIDC-KERNEL-LIBRARY", "it is not installed", "install it")
    monkeypatch.setattr(kernel_library, "fault", lambda: missing)
    assert engine_operators.fault(CUDA) is missing


def test_a_library_for_other_gpus_is_named_with_the_gpu(library):
    library(raising("[VIDC-KERNEL-GPU] vidc::gelu_quantize: the library has none for this GPU"))
    found = engine_operators.fault(CUDA)
    assert found is not None
    assert found.code == "VIDC-KERNEL-GPU"
    assert found.message == "libvidc_torch.so has no kernel for NVIDIA T4"


def test_a_gpu_that_fails_is_not_taken_for_one_without_kernels(library):
    library(raising("CUDA out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        engine_operators.fault(CUDA)


def test_kernels_that_ran_are_not_tried_again(library):
    tried = []
    library(tried.append)
    assert engine_operators.fault(CUDA) is None
    assert engine_operators.fault(CUDA) is None
    assert tried == [CUDA]
