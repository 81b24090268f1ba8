"""Memory that ONNX Runtime takes from PyTorch, called as ONNX Runtime calls it: by address."""

import ctypes

import pytest
import torch

from vidc.runtime.engines.torch_memory import torch_memory

GPU = torch.device("cuda", 0)


class Allocator:
    """PyTorch's, of so many bytes."""

    def __init__(self, room):
        self.room = room
        self.taken = {}
        self.asked = set()

    def take(self, size, device, stream):
        self.asked.add((device, stream))
        if size > self.room - sum(self.taken.values()):
            raise torch.OutOfMemoryError
        address = 4096 * (len(self.taken) + 1)
        self.taken[address] = size
        return address

    def give_back(self, address):
        del self.taken[address]


@pytest.fixture
def allocator(monkeypatch):
    found = Allocator(1000)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: f"a stream of {device}")
    monkeypatch.setattr(torch.cuda, "caching_allocator_alloc", found.take)
    monkeypatch.setattr(torch.cuda, "caching_allocator_delete", found.give_back)
    torch_memory.cache_clear()
    yield found
    torch_memory.cache_clear()


def functions(named="cuda:0"):
    options = torch_memory(torch.device(named))
    take = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)(int(options["gpu_external_alloc"]))
    give_back = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(int(options["gpu_external_free"]))
    return take, give_back


@pytest.mark.parametrize("named", ["cuda", "cuda:0"])
def test_allocates_from_pytorch_on_its_own_stream(allocator, named):
    take, give_back = functions(named)
    one, other = take(600), take(400)
    assert allocator.taken == {one: 600, other: 400}
    assert allocator.asked == {(GPU, "a stream of cuda:0")}
    give_back(one)
    assert allocator.taken == {other: 400}


def test_returns_no_address_when_out_of_memory(allocator):
    take, give_back = functions()
    held = take(900)
    assert take(200) is None
    give_back(held)
    assert take(200) is not None


def test_engines_of_a_device_share_one_allocator(allocator):
    assert torch_memory(GPU) is torch_memory(GPU)
