import pytest
import torch

from vidc.plugins.errors import UnavailableError
from vidc.runtime.faults import gpu_faults

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that answers; its allocator counts refusals."""

    class Gpu:
        refusals = 0
        answers = True

        def synchronize(self, device):
            if not self.answers:
                raise torch.AcceleratorError("CUDA error: unspecified launch failure")

    found = Gpu()
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_ooms": found.refusals})
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * 10**9, 80 * 10**9))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 70 * 10**9)
    monkeypatch.setattr(torch.cuda, "synchronize", found.synchronize)
    return found


def fault(device, error):
    with pytest.raises(UnavailableError) as caught, gpu_faults(device):
        raise error
    return caught.value


def test_torch_out_of_memory_is_coded(gpu):
    found = fault(CUDA, torch.OutOfMemoryError("CUDA out of memory"))
    assert found.code == "VIDC-GPU-MEMORY"
    assert "2.0 of 80.0 GB" in found.message
    assert "70.0 GB" in found.message


def test_out_of_memory_hidden_by_an_engine_is_coded(gpu):
    def run():
        gpu.refusals += 1
        raise RuntimeError("run_func_(...) API call failed at model_container_runner.cpp")

    with pytest.raises(UnavailableError, match="VIDC-GPU-MEMORY"), gpu_faults(CUDA):
        run()


def test_earlier_out_of_memory_does_not_count(gpu):
    gpu.refusals = 3
    with pytest.raises(RuntimeError, match="a bug"), gpu_faults(CUDA):
        raise RuntimeError("a bug")


def test_a_device_without_room_for_cuda_is_full_and_not_lost(gpu, monkeypatch):
    def full(device):
        raise torch.AcceleratorError("CUDA error: out of memory\nmore")

    # CUDA makes its context where memory is first asked for.
    monkeypatch.setattr(torch.cuda, "mem_get_info", full)
    with pytest.raises(UnavailableError, match="VIDC-GPU-MEMORY") as caught, gpu_faults(CUDA):
        torch.cuda.mem_get_info(CUDA)
    assert "what CUDA itself takes" in caught.value.message


def test_a_device_that_is_lost_from_the_start_is_lost(gpu, monkeypatch):
    def lost(device):
        raise torch.AcceleratorError("CUDA error: no CUDA-capable device is detected")

    monkeypatch.setattr(torch.cuda, "memory_stats", lost)
    with pytest.raises(UnavailableError, match="VIDC-GPU-LOST"), gpu_faults(CUDA):
        pytest.fail("what is inside must not run")


def test_a_device_that_reports_a_fault_is_lost(gpu):
    found = fault(CUDA, torch.AcceleratorError("CUDA error: device-side assert triggered\nmore"))
    assert found.code == "VIDC-GPU-LOST"
    assert found.message.endswith("CUDA error: device-side assert triggered")


def test_a_device_that_stays_silent_is_lost(gpu):
    gpu.answers = False
    assert fault(CUDA, RuntimeError("run_func_(...) API call failed")).code == "VIDC-GPU-LOST"


def test_nothing_changes_on_a_cpu():
    with pytest.raises(RuntimeError, match="a bug"), gpu_faults(CPU):
        raise RuntimeError("a bug")


def test_nothing_changes_where_nothing_fails(gpu):
    with gpu_faults(CUDA):
        pass
