"""Memory that ONNX Runtime takes from PyTorch's allocator."""

import ctypes
import gc

import pytest
import torch

from vidc.runtime.engines.torch_memory import torch_memory

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("named", ["cuda", "cuda:0"])
def test_what_is_taken_is_pytorch_s_until_it_is_given_back(named):
    options = torch_memory(torch.device(named))
    take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
    give_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
    gc.collect()  # Bundles of other tests.
    before = torch.cuda.memory_allocated(DEVICE)
    address = take(1 << 20)
    assert torch.cuda.memory_allocated(DEVICE) == before + (1 << 20)
    give_back(address)
    assert torch.cuda.memory_allocated(DEVICE) == before
    assert take(1 << 50) is None
