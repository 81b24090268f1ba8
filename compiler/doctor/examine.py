"""All probes in order. One that fails is a finding of its own and does not end the examination."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vidc.compiler.doctor.finding import Finding, Status
from vidc.compiler.doctor.machine import probe_cache, probe_cpu, probe_cuda
from vidc.compiler.doctor.packages import probe_packages, probe_python
from vidc.compiler.doctor.toolchain import probe_backends, probe_cxx, probe_onnxruntime


class Probe(NamedTuple):
    """What is looked at, and how bad it is if looking fails."""

    name: str
    look: Callable[[], Iterable[Finding]]
    failure: Status


PROBES = (
    Probe("python", probe_python, Status.BROKEN),
    Probe("packages", probe_packages, Status.BROKEN),
    Probe("cpu", probe_cpu, Status.BROKEN),
    Probe("onnxruntime", probe_onnxruntime, Status.BROKEN),
    Probe("cuda", probe_cuda, Status.WARNING),
    Probe("c++", probe_cxx, Status.WARNING),
    Probe("backends", probe_backends, Status.WARNING),
    Probe("cache", probe_cache, Status.BROKEN),
)


def examine(probes: Iterable[Probe] = PROBES) -> list[Finding]:
    """What every probe finds."""
    findings: list[Finding] = []
    for probe in probes:
        try:
            findings += probe.look()
        except Exception as error:  # noqa: BLE001 - a probe meets whatever the machine has
            findings.append(Finding(probe.name, probe.failure, f"{type(error).__name__}: {error}"))
    return findings
