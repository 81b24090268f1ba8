import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version

import pytest
import torch

from vidc.plugins import loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError
from vidc.runtime import compatibility
from vidc.runtime.compatibility import check, other_versions, require_driver
from vidc.runtime.manifest import Engine, Manifest, Requirements
from vidc.runtime.ort import onnxruntime

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture
def cpu_manifest(manifest: Manifest) -> Manifest:
    target = replace(manifest.target, name="cpu", compute_capability=None)
    return requiring(replace(manifest, target=target))


@pytest.fixture
def gpu_manifest(manifest: Manifest) -> Manifest:
    """Built for h100."""
    return requiring(manifest)


def requiring(
    manifest: Manifest,
    torch: str | None = None,
    cpu_features: tuple[str, ...] = (),
    operators: tuple[str, ...] = (),
) -> Manifest:
    """The manifest with an engine that needs this and nothing else."""
    requires = Requirements(torch, cpu_features, operators)
    engine = replace(manifest.engines["denoise"], requires=requires)
    return replace(manifest, engines={"denoise": engine})


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, name: str, capability: tuple[int, int]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)


def refusal(manifest: Manifest, device: torch.device) -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        check(manifest, device)
    return caught.value


def test_a_cpu_bundle_runs_on_a_cpu(cpu_manifest: Manifest) -> None:
    assert check(cpu_manifest, CPU) == ()
    assert cpu_manifest.target.device_type == "cpu"


def test_other_versions_of_vidc_and_of_the_engines_tool_are_noted(manifest: Manifest) -> None:
    engine = manifest.engines["denoise"]
    here = replace(engine, version=onnxruntime.__version__)
    same = replace(manifest, engines={"denoise": here}, tools={"vidc": version("vidc")})
    assert other_versions(same) == ()
    older = {"denoise": here, "kv_update": replace(engine, version="1.0")}
    tool, vidc = other_versions(replace(same, engines=older, tools={"vidc": "0.0.1"}))
    assert f"onnxruntime 1.0, and {onnxruntime.__version__} is" in tool
    assert f"vidc 0.0.1, and {version('vidc')} is" in vidc


def test_a_cpu_bundle_is_refused_elsewhere(cpu_manifest: Manifest) -> None:
    assert refusal(cpu_manifest, CUDA).code == "VIDC-BUNDLE-GPU"


def test_a_gpu_bundle_needs_a_gpu(gpu_manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in (CPU, CUDA):
        error = refusal(gpu_manifest, device)
        assert error.code == "VIDC-BUNDLE-GPU"
        assert "h100 (compute capability 9.0)" in error.message


def test_another_compute_capability_is_refused_naming_both(
    gpu_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch, "NVIDIA A100-SXM4-80GB", (8, 0))
    error = refusal(gpu_manifest, CUDA)
    assert error.code == "VIDC-BUNDLE-GPU"
    for part in ("h100", "9.0", "NVIDIA A100-SXM4-80GB", "8.0"):
        assert part in error.message


def test_the_same_capability_on_another_gpu_is_a_note(
    gpu_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch, "NVIDIA H200", (9, 0))
    (note,) = check(gpu_manifest, CUDA)
    assert "h100" in note
    assert "NVIDIA H200" in note


@pytest.mark.parametrize(("capability", "runs"), [((8, 6), True), ((9, 0), True), ((7, 5), False)])
def test_a_bundle_runs_where_all_of_its_engines_do(
    gpu_manifest: Manifest, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], runs: bool
) -> None:
    engine = gpu_manifest.engines["denoise"]

    def named(*capabilities: str) -> Engine:
        return replace(engine, requires=Requirements(None, (), (), capabilities))

    engines = {"denoise": named("7.5", "8.6", "9.0"), "text_kv": named("8.6", "9.0")}
    built = replace(gpu_manifest, engines=engines)
    pretend_gpu(monkeypatch, "NVIDIA GeForce RTX 3090", capability)
    if not runs:
        error = refusal(built, CUDA)
        assert error.code == "VIDC-BUNDLE-GPU"
        assert "h100 (compute capability 8.6, 9.0)" in error.message
        return
    (note,) = check(built, CUDA)
    assert "for h100 and runs here on NVIDIA GeForce RTX 3090" in note
    assert ("of compute capability 8.6" in note) == (capability == (8, 6))
    # Of one engine that says nothing, the bundle is for the target alone.
    mixed = replace(built, engines={**engines, "kv_update": named()})
    if capability == (8, 6):
        assert refusal(mixed, CUDA).code == "VIDC-BUNDLE-GPU"


@pytest.mark.parametrize(
    ("target", "device", "same"),
    [
        ("h100", "NVIDIA H100 80GB HBM3", True),
        ("h200", "NVIDIA H200", True),
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("rtx4090", "NVIDIA GeForce RTX 4090", True),
        ("t4", "Tesla T4", True),
        ("l4", "NVIDIA L4", True),
        ("l4", "NVIDIA L40S", False),
        ("rtx4090", "NVIDIA GeForce RTX 4080", False),
    ],
)
def test_gpus_are_recognized_by_name(
    gpu_manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    target: str,
    device: str,
    same: bool,
) -> None:
    pretend_gpu(monkeypatch, device, (9, 0))
    built = replace(gpu_manifest, target=replace(gpu_manifest.target, name=target))
    assert (check(built, CUDA) == ()) is same


@pytest.mark.parametrize(
    ("needed", "missing"),
    [
        ((), None),
        (("avx2",), None),
        (("avx2", "avx512_f"), "avx512_f"),
        (("avx1024",), "avx1024"),
        (("cpu_name",), "cpu_name"),
        (("l2_cache_size",), "l2_cache_size"),
    ],
)
def test_names_missing_cpu_instructions(
    cpu_manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    needed: tuple[str, ...],
    missing: str | None,
) -> None:
    here = {"avx2": True, "avx512_f": False, "cpu_name": "one", "l2_cache_size": 1}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: here)
    built = requiring(cpu_manifest, cpu_features=needed)
    if missing is None:
        check(built, CPU)
        return
    error = refusal(built, CPU)
    assert error.code == "VIDC-BUNDLE-CPU"
    assert f"engine denoise uses instructions that this CPU lacks: {missing}" in error.message


@pytest.mark.parametrize(
    ("version", "runs"),
    [
        ("2.13.0", True),
        ("2.13.0+cu130", True),
        ("2.9.1", True),
        ("2.13", True),
        ("2.13.1", False),
        ("2.100.0", False),
        ("3.0.0.dev20270101", False),
        ("unknown", False),
        (None, True),
    ],
)
def test_engines_of_a_newer_torch_are_refused(
    cpu_manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    version: str | None,
    runs: bool,
) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    built = requiring(cpu_manifest, torch=version)
    if runs:
        check(built, CPU)
        return
    error = refusal(built, CPU)
    assert error.code == "VIDC-BUNDLE-TORCH"
    assert str(version) in error.message
    assert "2.13.0" in error.message


def test_another_plugin_abi_is_refused(cpu_manifest: Manifest) -> None:
    built = replace(cpu_manifest, plugin_abi=cpu_manifest.plugin_abi + 1)
    assert refusal(built, CPU).code == "VIDC-BUNDLE-ABI"


def test_importing_does_not_start_cuda() -> None:
    code = (
        "import torch, vidc.runtime.compatibility, vidc.runtime.integrity, vidc.runtime.pickles;"
        "raise SystemExit(torch.cuda.is_initialized())"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("torch_cuda", "driver", "refused"),
    [
        ("13.0", (12, 8), True),
        ("13.0", (13, 0), False),
        ("12.8", (13, 0), False),
        ("13.2", (13, 0), False),
        ("13.0", None, False),
        (None, (12, 8), False),
    ],
)
def test_a_driver_older_than_torch_is_refused(monkeypatch, torch_cuda, driver, refused):
    monkeypatch.setattr(torch.version, "cuda", torch_cuda)
    monkeypatch.setattr(compatibility, "driver_version", lambda: driver)
    if not refused:
        require_driver()
        return
    with pytest.raises(UnavailableError, match="VIDC-GPU-DRIVER") as caught:
        require_driver()
    assert "knows CUDA 12.8 at most" in caught.value.message
    assert "built for CUDA 13.0" in caught.value.message


def test_a_gpu_bundle_says_that_the_driver_is_too_old(gpu_manifest, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(compatibility, "driver_version", lambda: (12, 2))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refusal(gpu_manifest, CUDA).code == "VIDC-GPU-DRIVER"


CALLED = ("gelu_quantize", "qk_norm_rope_ring_write")


def faulty(code: str) -> UnavailableError:
    return UnavailableError(code, "what is wrong with the library", "build it")


@pytest.mark.parametrize("code", ["VIDC-KERNEL-LIBRARY", "VIDC-KERNEL-ABI"])
def test_engines_that_call_fused_operators_need_the_library(
    gpu_manifest: Manifest, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    monkeypatch.setattr(loading, "torch_library_error", lambda: faulty(code))
    error = refusal(requiring(gpu_manifest, operators=CALLED), CUDA)
    assert error.code == code
    assert "engine denoise calls vidc::gelu_quantize, vidc::qk_norm_rope_ring_write" in str(error)
    assert "what is wrong with the library" in error.message
    assert "build it; or build the bundle again" in error.hint


def test_engines_without_fused_operators_need_no_library(
    gpu_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch, "NVIDIA H100 80GB HBM3", (9, 0))
    monkeypatch.setattr(compatibility, "driver_version", lambda: None)
    monkeypatch.setattr(loading, "torch_library_error", lambda: faulty("VIDC-KERNEL-LIBRARY"))
    assert check(gpu_manifest, CUDA) == ()


def test_engines_with_fused_operators_run_with_the_library(
    gpu_manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend_gpu(monkeypatch, "NVIDIA H100 80GB HBM3", (9, 0))
    monkeypatch.setattr(compatibility, "driver_version", lambda: None)
    monkeypatch.setattr(loading, "torch_library_error", lambda: None)
    assert check(requiring(gpu_manifest, operators=CALLED), CUDA) == ()


def test_an_operator_that_this_vidc_lacks_is_named(gpu_manifest: Manifest) -> None:
    error = refusal(requiring(gpu_manifest, operators=("of_later",)), CUDA)
    assert error.code == "VIDC-BUNDLE-ABI"
    assert "vidc::of_later" in error.message


def test_library_abi_equals_the_manifest_abi(gpu_manifest: Manifest) -> None:
    """One number stands for both: the library is refused by it, and so is the bundle."""
    other = replace(requiring(gpu_manifest, operators=CALLED), plugin_abi=PLUGIN_ABI + 1)
    assert refusal(other, CUDA).code == "VIDC-BUNDLE-ABI"
