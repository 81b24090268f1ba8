import shutil
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement

from vidc.compiler.doctor.probes import (
    Finding,
    Probe,
    Status,
    examine,
    examine_package,
    probe_cache,
    probe_cpu,
    probe_cuda,
    probe_cxx,
    probe_onnxruntime,
    probe_packages,
    probe_python,
)
from vidc.plugins.errors import UsageError
from vidc.plugins.installation import install_extra, install_packages


def test_a_probe_that_fails_is_a_finding_and_the_rest_goes_on():
    def fails():
        raise OSError("no such thing")

    good = Finding("next", Status.GOOD, "here")
    found = examine(
        [Probe("first", fails, Status.WARNING), Probe("x", lambda: [good], Status.GOOD)]
    )
    assert found == [Finding("first", Status.WARNING, "OSError: no such thing"), good]


def test_a_coded_error_is_a_finding_with_its_hint():
    def fails():
        raise UsageError("VIDC-SOME-CODE", "it broke", "mend it")

    (found,) = examine([Probe("first", fails, Status.BROKEN)])
    assert found == Finding("first", Status.BROKEN, "it broke", "mend it")


def test_checks_declared_packages():
    found = {finding.name: finding for finding in probe_packages()}
    assert {"torch", "click", "onnxruntime", "diffusers", "onnx"} <= found.keys()
    assert not found.keys() & {"vidc", "ruff"}
    assert found["torch"].status is Status.GOOD


@pytest.mark.parametrize(
    ("requirement", "extra", "status", "hint"),
    [
        ("click>=8", "", Status.GOOD, ""),
        ("click>=99", "", Status.BROKEN, install_packages("click>=99")),
        ("click>=99", "build", Status.BROKEN, install_packages("click>=99")),
        ("no-such-package-of-vidc", "", Status.BROKEN, install_extra("")),
        ("no-such-package-of-vidc", "build", Status.MISSING, install_extra("build")),
    ],
)
def test_a_package_is_judged_by_its_version_and_its_extra(requirement, extra, status, hint):
    found = examine_package(Requirement(requirement), extra)
    assert (found.status, found.hint) == (status, hint)


def test_this_machine_can_run_tests():
    for probe in (probe_python, probe_cpu, probe_onnxruntime):
        assert [finding.status for finding in probe()] == [Status.GOOD]


def test_no_gpu_is_no_failure(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    (found,) = probe_cuda()
    assert found.status is Status.MISSING


@pytest.mark.parametrize(
    ("name", "capability", "status", "words"),
    [
        ("NVIDIA H200", (9, 0), Status.GOOD, "target h200"),
        ("Tesla V100", (7, 0), Status.WARNING, "7.0"),
    ],
)
def test_a_gpu_is_shown_with_its_target(monkeypatch, name, capability, status, words):
    major, minor = capability
    gpu = SimpleNamespace(name=name, major=major, minor=minor, total_memory=16e9)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda index: gpu)
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda index: (12e9, 16e9))
    (found,) = probe_cuda()
    assert "12 of 16 GB free" in found.detail
    assert found.status is status
    assert words in found.detail


def test_a_driver_that_is_too_old_is_a_trap(monkeypatch):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("vidc.runtime.compatibility.driver_version", lambda: (12, 4))
    (found,) = probe_cuda()
    assert found.status is Status.WARNING
    assert "CUDA 12.4" in found.detail
    assert "update the driver" in found.hint


def compiler(folder, body):
    script = folder / "compiler"
    script.write_text(f"#!/bin/sh\n{body}\n")
    script.chmod(0o755)
    return str(script)


needs_gxx = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")


@needs_gxx
@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ('exec g++ "$@"', Status.GOOD, ""),
        ('exec g++ -static-libstdc++ "$@"', Status.WARNING, "statically"),
        ("echo no >&2; exit 1", Status.WARNING, "does not compile: no"),
    ],
)
def test_compiler_status_depends_on_linking(tmp_path, monkeypatch, body, status, words):
    monkeypatch.setenv("CXX", compiler(tmp_path, body))
    (found,) = probe_cxx()
    assert found.status is status
    assert words in found.detail


def test_a_missing_compiler_is_missing(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    (found,) = probe_cxx()
    assert found.status is Status.MISSING


def test_the_cache_need_not_exist_yet(tmp_path, monkeypatch):
    folder = tmp_path / "not" / "yet"
    monkeypatch.setenv("VIDC_CACHE", str(folder))
    (found,) = probe_cache()
    assert found.status in (Status.GOOD, Status.WARNING)
    assert found.detail.startswith(f"{folder}, ")
    assert not folder.exists()


def test_a_full_disk_is_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("VIDC_CACHE", str(tmp_path))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=3e9))
    (found,) = probe_cache()
    assert found.status is Status.WARNING
    assert "3.0 GB free" in found.detail


def test_a_cache_that_cannot_be_written_is_broken(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("VIDC_CACHE", str(file))
    (found,) = probe_cache()
    assert found.status is Status.BROKEN
    assert str(file) in found.detail
