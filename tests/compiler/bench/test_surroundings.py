"""Facts of the machine around a measurement."""

import subprocess
from types import SimpleNamespace

import pytest
import torch

from vidc.compiler.bench import fingerprint as fingerprint_module
from vidc.compiler.bench import usage as usage_module
from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.fingerprint import fingerprint, gpu_state
from vidc.compiler.bench.usage import Disturbance


@pytest.fixture
def bundle(tmp_path):
    (tmp_path / "manifest.json").write_text("{}")
    return tmp_path


def test_the_fingerprint_is_stable_and_hashed(bundle):
    found = fingerprint(torch.device("cpu"), bundle)
    assert found == fingerprint(torch.device("cpu"), bundle)
    assert found["machine"]["gpu"] is None
    assert found["software"]["packages"]["torch"] == torch.__version__
    # Each package that an engine may run on, whichever of them is here.
    assert {"onnxruntime", "onnxruntime-gpu", "tensorrt", "tensorrt-rtx"} <= set(
        found["software"]["packages"]
    )
    assert found["bundle"]
    (bundle / "manifest.json").write_text("{} ")
    other = fingerprint(torch.device("cpu"), bundle)
    assert (other["bundle"] != found["bundle"], other["hash"] != found["hash"]) == (True, True)
    assert fingerprint()["bundle"] is None


def test_other_threads_are_another_machine():
    threads, before = torch.get_num_threads(), fingerprint()
    try:
        torch.set_num_threads(threads + 1)
        after = fingerprint()
    finally:
        torch.set_num_threads(threads)
    assert after["machine"] != before["machine"]
    assert after["hash"] != before["hash"]


def test_sources_outside_a_checkout_have_no_commit(monkeypatch, tmp_path):
    monkeypatch.setattr(fingerprint_module, "__file__", str(tmp_path / "fingerprint.py"))
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    assert fingerprint()["software"]["commit"] is None


GPU = SimpleNamespace(
    name="NVIDIA H200", major=9, minor=0, total_memory=150 * 10**9, multi_processor_count=132,
    uuid="1234",
)  # fmt: skip


def test_a_gpu_is_described_by_torch_and_by_the_driver(monkeypatch):
    asked = []

    def answer(command):
        asked.append(command)
        return ", ".join(f"<{field}>" for field in command[3].partition("=")[2].split(","))

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: GPU)
    monkeypatch.setattr(fingerprint_module, "_output", answer)
    device = torch.device("cuda")
    found = fingerprint(device)
    assert found["machine"]["gpu"]["name"] == "NVIDIA H200"
    assert found["machine"]["gpu"]["compute_capability"] == "9.0"
    assert found["machine"]["gpu"]["power_limit_w"] == "<power.limit>"
    assert found["software"]["driver"] == "<driver_version>"
    assert gpu_state(device)["sm_clock_mhz"] == "<clocks.sm>"
    assert all("GPU-1234" in command for command in asked if command[0] == "nvidia-smi")


@pytest.mark.parametrize("told", [None, "", "one, two"])
def test_failing_nvidia_smi_gives_none(monkeypatch, told):
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: GPU)
    monkeypatch.setattr(fingerprint_module, "_output", lambda command: told)
    found = fingerprint(torch.device("cuda"))
    assert found["machine"]["gpu"]["power_limit_w"] is None
    assert found["software"]["driver"] is None


def test_a_cpu_has_no_gpu_state():
    assert gpu_state(torch.device("cpu")) is None


def test_disturbance_excludes_own_cpu_time(monkeypatch):
    readings = iter(
        [(0.0, 100.0, 10.0), (10.0, 116.0, 14.0)]  # Time, work of all cores, our own.
    )
    current = {}

    def read():
        current.update(zip(("time", "busy", "own"), next(readings), strict=True))
        return current["time"]

    monkeypatch.setattr(usage_module.time, "perf_counter", read)
    monkeypatch.setattr(usage_module, "_busy", lambda: current["busy"])
    monkeypatch.setattr(usage_module, "_own", lambda: current["own"])
    monkeypatch.setattr(usage_module.os, "cpu_count", lambda: 4)
    counted = Disturbance()
    read()
    monkeypatch.setattr(usage_module.time, "perf_counter", lambda: current["time"])
    # Of 40 seconds of cores, 16 were worked, 4 of them by us.
    assert counted.share() == pytest.approx(12 / 40)


def test_disturbance_is_a_share_or_unknown(monkeypatch, tmp_path):
    share = Disturbance().share()
    assert share is None or 0 <= share <= 1
    monkeypatch.setattr(usage_module, "_STAT", tmp_path / "none")
    assert Disturbance().share() is None


def test_the_clock_gives_the_result_and_the_time_it_took():
    clock = Clock(torch.device("cpu"))
    result, milliseconds = clock.time(lambda: 42)
    assert (result, milliseconds >= 0) == (42, True)
    first = clock.mark()
    second = clock.mark()
    clock.reach(second)
    assert clock.between(first, second) >= 0
    assert clock.between(second, first) <= 0
