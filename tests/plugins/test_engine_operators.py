"""The trial of the library's kernels on a device, replaced by functions to need no GPU."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from vidc.plugins import engine_operators, loading
from vidc.plugins.errors import UnavailableError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def library(monkeypatch):
    """Simulates an installed library and a GPU whose kernels are the given functions."""
    engine_operators.kernel_error.cache_clear()

    def library(run, rings=None):
        monkeypatch.setattr(loading, "torch_library_error", lambda: None)
        monkeypatch.setattr(engine_operators, "_run_plain", run)
        monkeypatch.setattr(engine_operators, "_run_rings_8bit", rings)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA T4")

    yield library
    engine_operators.kernel_error.cache_clear()


def raising(text):
    def run(device):
        raise RuntimeError(text)

    return run


def test_cpu_needs_no_library(library):
    library(raising("tried"))
    assert engine_operators.kernel_error(CPU) is None


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
        (engine_operators._run_plain, engine_operators.PLAIN),
        (engine_operators._run_rings_8bit, engine_operators.RINGS_8BIT),
    ],
    ids=["plain", "rings of 8 bits"],
)
def test_trial_calls_every_operator(run, names):
    """References run the same checks as kernels, so the arguments are valid for both."""
    with Calls() as called:
        run(CPU)
    assert called.names == list(names)


def test_operator_names_are_sorted():
    assert list(engine_operators.OPERATORS) == sorted(engine_operators.OPERATORS)


def test_returns_the_error_of_a_missing_library(library, monkeypatch):
    library(raising("tried"))
    missing = UnavailableError("VIDC-KERNEL-LIBRARY", "it is not installed", "install it")
    monkeypatch.setattr(loading, "torch_library_error", lambda: missing)
    assert engine_operators.kernel_error(CUDA) is missing


def test_library_for_other_gpus_is_an_error_that_names_the_gpu(library):
    library(
        raising("[VIDC-KERNEL-GPU] vidc::gelu_quantize: the library has no kernel for this GPU")
    )
    found = engine_operators.kernel_error(CUDA)
    assert found is not None
    assert found.code == "VIDC-KERNEL-GPU"
    assert found.message == "libvidc_torch.so has no kernel for NVIDIA T4"


def test_other_gpu_failures_are_raised(library):
    library(raising("CUDA out of memory"))
    with pytest.raises(RuntimeError, match="out of memory"):
        engine_operators.kernel_error(CUDA)


def test_trial_runs_once(library):
    tried = []
    library(tried.append)
    assert engine_operators.kernel_error(CUDA) is None
    assert engine_operators.kernel_error(CUDA) is None
    assert tried == [CUDA]


@pytest.mark.parametrize("name", engine_operators.RINGS_8BIT)
def test_8bit_kernels_are_tried_on_request(library, name):
    tried = []
    library(tried.append, lambda device: tried.append("rings"))
    assert engine_operators.kernel_error(CUDA, (name,)) is None
    assert tried == [CUDA, "rings"]


def test_library_without_8bit_kernels_is_an_error(library):
    library(lambda device: None, raising("[VIDC-KERNEL-GPU] vidc::ring_attention_8bit: none"))
    found = engine_operators.kernel_error(CUDA, engine_operators.RINGS_8BIT)
    assert found is not None
    assert found.code == "VIDC-KERNEL-GPU"
