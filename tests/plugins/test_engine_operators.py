"""Whether the library's kernels serve a device, told without a GPU: what tries them is replaced."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vidc.plugins import engine_operators, kernel_library
from vidc.plugins.errors import UnavailableError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def library(monkeypatch):
    """Makes the library be there, and a GPU, whose kernels do what functions do."""
    engine_operators.fault.cache_clear()

    def library(run, rings=None):
        monkeypatch.setattr(kernel_library, "fault", lambda: None)
        monkeypatch.setattr(engine_operators, "_try_all", run)
        monkeypatch.setattr(engine_operators, "_try_rings_8bit", rings)
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


class Calls(TorchDispatchMode):
    """Names of vidc's operators that are called in it."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "vidc":
            self.names.append(func._schema.name.partition("::")[2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("run", "names"),
    [
        (engine_operators._try_all, engine_operators.PLAIN),
        (engine_operators._try_rings_8bit, engine_operators.RINGS_8BIT),
    ],
    ids=["plain", "rings of 8 bits"],
)
def test_what_is_tried_is_every_operator_as_it_is_on_a_cpu(run, names):
    """Its arguments are those that kernels take, too: both make the same checks."""
    with Calls() as called:
        run(CPU)
    assert called.names == list(names)


def test_names_are_sorted():
    assert list(engine_operators.OPERATORS) == sorted(engine_operators.OPERATORS)


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


@pytest.mark.parametrize("name", engine_operators.RINGS_8BIT)
def test_kernels_of_rings_in_8_bits_are_tried_where_they_are_wanted(library, name):
    tried = []
    library(tried.append, lambda device: tried.append("rings"))
    assert engine_operators.fault(CUDA, (name,)) is None
    assert tried == [CUDA, "rings"]


def test_a_library_without_kernels_for_rings_in_8_bits_is_named(library):
    library(lambda device: None, raising("[VIDC-KERNEL-GPU] vidc::ring_attention_8bit: none"))
    found = engine_operators.fault(CUDA, engine_operators.RINGS_8BIT)
    assert found is not None
    assert found.code == "VIDC-KERNEL-GPU"
