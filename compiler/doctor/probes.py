"""Probes of the machine: processors, cache, packages and tools that build engines."""

import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from vidc.compiler.backends.aoti.cxx import cxx_defect, cxx_version
from vidc.compiler.config.environment import cache_root
from vidc.compiler.config.targets import AUTO, Target, find_target, match_gpu, targets
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError, VidcError
from vidc.plugins.installation import install_extra, install_packages


class Status(StrEnum):
    """Status of a finding."""

    GOOD = "good"
    MISSING = "missing"
    """Not installed; a plain CPU build does not need it or says what to install."""
    WARNING = "warning"
    """Present, with a defect that does not stop a plain CPU build."""
    BROKEN = "broken"
    """Broken, and a plain CPU build needs it."""


@dataclass(frozen=True)
class Finding:
    """Finding with its status and a hint."""

    name: str
    status: Status
    detail: str
    hint: str = ""


LOW_SPACE_GB = 10.0
"""Approximate size of a 1.3B build's weights, graphs and engines."""


def probe_cpu() -> Iterator[Finding]:
    """Yields the instruction set for CPU engines."""
    import torch

    capability = torch.backends.cpu.get_cpu_capability()
    yield Finding("cpu", Status.GOOD, f"{platform.machine()}, {capability}, {os.cpu_count()} cores")


def probe_cuda() -> Iterator[Finding]:
    """Yields each GPU with its target."""
    import torch

    from vidc.runtime.compatibility import require_driver

    try:
        require_driver()
    except UnavailableError as error:
        yield Finding("cuda", Status.WARNING, error.message, error.hint)
        return
    if not torch.cuda.is_available():
        why = "none found" if torch.version.cuda else f"torch {torch.__version__} has no CUDA"
        yield Finding("cuda", Status.MISSING, why)
    for index in range(torch.cuda.device_count()):
        gpu = torch.cuda.get_device_properties(index)
        name, capability = f"cuda:{index}", f"{gpu.major}.{gpu.minor}"
        memory = gpu.total_memory / 1e9
        free = torch.cuda.mem_get_info(index)[0] / 1e9
        detail = f"{gpu.name}, compute capability {capability}, {free:.0f} of {memory:.0f} GB free"
        try:
            target = match_gpu(gpu.name, capability, memory)
        except UnavailableError as error:
            yield Finding(name, Status.WARNING, detail, error.message)
        else:
            yield Finding(name, Status.GOOD, f"{detail}: target {target.name}")


def probe_cache() -> Iterator[Finding]:
    """Checks that the cache is writable and has space."""
    root = cache_root(os.environ)
    existing = next(folder for folder in (root, *root.absolute().parents) if folder.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        detail = f"{root} cannot be written: {error.strerror}"
        yield Finding("cache", Status.BROKEN, detail, "set VIDC_CACHE to a folder of yours")
        return
    free = shutil.disk_usage(existing).free / 1e9
    low = free < LOW_SPACE_GB
    yield Finding(
        "cache",
        Status.WARNING if low else Status.GOOD,
        f"{root}, {free:.1f} GB free",
        "run `vidc cache prune` or set VIDC_CACHE to a larger disk" if low else "",
    )


DISTRIBUTION = "vidc"
KERNELS = "cuda kernels"
BACKEND = "backend "
"""Start of the name of a backend's finding."""
DEVELOPMENT = frozenset({"dev", "docs"})
"""Extras for people who change vidc."""


def probe_python() -> Iterator[Finding]:
    """Checks the Python version."""
    version = platform.python_version()
    supported = SpecifierSet(metadata.metadata(DISTRIBUTION)["Requires-Python"])
    if supported.contains(version):
        yield Finding("python", Status.GOOD, version)
    else:
        yield Finding(
            "python", Status.BROKEN, f"{version}, supported: {supported}", "use a supported Python"
        )


def probe_packages() -> Iterator[Finding]:
    """Checks each package that vidc or one of its user extras requires."""
    extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        for extra in ("", *extras):
            if extra not in DEVELOPMENT and _belongs(requirement, extra):
                yield examine_package(requirement, extra)
                break


def _belongs(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def examine_package(requirement: Requirement, extra: str) -> Finding:
    """Checks that a package is installed in a supported version.

    Args:
        requirement: the package and its versions.
        extra: the extra of vidc that requires the package; empty if every install requires it.
    """
    name = requirement.name
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        status = Status.MISSING if extra else Status.BROKEN
        return Finding(name, status, "not installed", install_extra(extra))
    if not requirement.specifier.contains(version, prereleases=True):
        detail = f"{version}, supported: {requirement.specifier}"
        hint = install_packages(f"{name}{requirement.specifier}")
        return Finding(name, Status.BROKEN, detail, hint)
    return Finding(name, Status.GOOD, version)


def probe_onnxruntime() -> Iterator[Finding]:
    """Checks that ONNX Runtime imports, and lists its providers."""
    from vidc.runtime.ort import onnxruntime

    yield Finding(
        "onnxruntime providers",
        Status.GOOD,
        ", ".join(onnxruntime.get_available_providers()),
    )


def probe_kernels() -> Iterator[Finding]:
    """Checks that the library of CUDA kernels is installed and loads beside this torch."""
    from vidc.plugins import loading  # It imports torch.

    error = loading.torch_library_error()
    if error is None:
        yield Finding(KERNELS, Status.GOOD, f"{loading.TORCH_LIBRARY}, ABI {PLUGIN_ABI}")
    else:
        yield Finding(KERNELS, Status.MISSING, error.message, error.hint)


def probe_backends() -> Iterator[Finding]:
    """Yields the targets that each backend can build for on this machine."""
    from vidc.compiler import backends

    here = _targets_here()
    for name in backends.names():
        reasons = {target.name: backends.backend(name).unavailable(target) for target in here}
        able = [target for target, reason in reasons.items() if reason is None]
        if able:
            yield Finding(f"{BACKEND}{name}", Status.GOOD, f"builds for {', '.join(able)}")
        else:
            why = "; ".join(f"{target}: {reason}" for target, reason in reasons.items())
            yield Finding(f"{BACKEND}{name}", Status.MISSING, why)


def verdict(findings: Iterable[Finding]) -> str:
    """Returns one sentence: what is broken, what this machine can build, or what building needs."""
    findings = [*findings]
    broken = [finding.name for finding in findings if finding.status is Status.BROKEN]
    if broken:
        return f"verdict: vidc does not work here: {', '.join(broken)}"
    to_build = install_extra("build")
    if any(finding.hint == to_build for finding in findings):
        return f"verdict: vidc runs finished bundles here, and builds none; to build: {to_build}"
    able = [
        f"{finding.name.removeprefix(BACKEND)} {finding.detail}"
        for finding in findings
        if finding.name.startswith(BACKEND) and finding.status is Status.GOOD
    ]
    return f"verdict: vidc works here; {'; '.join(able) or 'no backend can build engines'}"


def _targets_here() -> list[Target]:
    """Returns the CPU target, and the GPU's if there is one."""
    cpu = targets()["cpu"]
    try:
        found = find_target(AUTO, "")
    except UnavailableError:
        return [cpu]
    return [cpu, found] if found.is_gpu else [cpu]


def probe_cxx() -> Iterator[Finding]:
    """Checks that AOTInductor's C++ compiler works and its libraries load."""
    defect = cxx_defect()
    if defect is None:
        yield Finding("c++", Status.GOOD, cxx_version())
    else:
        status = Status.MISSING if defect.missing else Status.WARNING
        yield Finding("c++", status, defect.reason, defect.hint)


class Probe(NamedTuple):
    """Probe and the status of its finding if it raises."""

    name: str
    look: Callable[[], Iterable[Finding]]
    failure: Status


PROBES = (
    Probe("python", probe_python, Status.BROKEN),
    Probe("packages", probe_packages, Status.BROKEN),
    Probe("cpu", probe_cpu, Status.BROKEN),
    Probe("onnxruntime", probe_onnxruntime, Status.BROKEN),
    Probe("cuda", probe_cuda, Status.WARNING),
    Probe(KERNELS, probe_kernels, Status.WARNING),
    Probe("c++", probe_cxx, Status.WARNING),
    Probe("backends", probe_backends, Status.WARNING),
    Probe("cache", probe_cache, Status.BROKEN),
)


def examine(probes: Iterable[Probe] = PROBES) -> list[Finding]:
    """Returns the findings of every probe."""
    findings: list[Finding] = []
    for probe in probes:
        try:
            findings += probe.look()
        except VidcError as error:
            findings.append(Finding(probe.name, probe.failure, error.message, error.hint))
        except Exception as error:  # noqa: BLE001 - a probe meets whatever the machine has
            findings.append(Finding(probe.name, probe.failure, f"{type(error).__name__}: {error}"))
    return findings
