from types import SimpleNamespace

import pytest

from vidc.compiler.config.schema import PRECISIONS
from vidc.compiler.config.targets import AUTO, find_target, match_gpu, targets
from vidc.plugins.errors import UnavailableError


def test_the_targets_of_the_command_line_are_there():
    expected = {"h100", "h200", "a100", "l4", "t4", "rtx4090", "rtx5090", "b200", "cpu"}
    assert targets().keys() == expected


@pytest.mark.parametrize("target", targets().values(), ids=targets())
def test_a_target_has_the_precisions_of_its_compute_capability(target):
    assert set(target.precisions) <= set(PRECISIONS)
    if not target.is_gpu:
        return
    capability = tuple(int(part) for part in target.compute_capability.split("."))
    assert ("bf16" in target.precisions) == (capability >= (8, 0))
    assert ("fp8" in target.precisions) == (capability >= (8, 9))
    for precision in PRECISIONS:
        peak = getattr(target.peaks, precision)
        assert peak is None or (peak > 0 and precision in target.precisions)


@pytest.mark.parametrize(
    ("gpu", "capability", "memory_gb", "expected"),
    [
        ("NVIDIA H100 80GB HBM3", "9.0", 85.0, "h100"),
        ("NVIDIA H200", "9.0", 150.0, "h200"),
        ("NVIDIA GH200 480GB", "9.0", 102.0, "h100"),
        ("NVIDIA A100-SXM4-80GB", "8.0", 85.0, "a100"),
        ("NVIDIA L4", "8.9", 24.0, "l4"),
        ("NVIDIA L40S", "8.9", 48.0, "l4"),
        ("Tesla T4", "7.5", 15.8, "t4"),
        ("NVIDIA GeForce RTX 4080", "8.9", 17.2, "rtx4090"),
        ("NVIDIA RTX 6000 Ada Generation", "8.9", 51.5, "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "8.9", 25.4, "rtx4090"),
        ("NVIDIA GeForce RTX 5090", "12.0", 34.0, "rtx5090"),
        ("NVIDIA B200", "10.0", 191.0, "b200"),
    ],
)
def test_a_gpu_is_matched_by_capability_then_name(gpu, capability, memory_gb, expected):
    assert match_gpu(gpu, capability, memory_gb).name == expected


def test_a_gpu_of_no_target_is_refused():
    with pytest.raises(UnavailableError, match=r"7\.0 of Tesla V100") as raised:
        match_gpu("Tesla V100", "7.0", 16.0)
    assert raised.value.code == "VIDC-TARGET-AUTO"


def test_auto_is_the_gpu_present_or_the_cpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert find_target(AUTO, "default").name == "cpu"
    gpu = SimpleNamespace(name="NVIDIA H200", major=9, minor=0, total_memory=150e9)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: gpu)
    assert find_target(AUTO, "default").name == "h200"
