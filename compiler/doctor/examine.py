"""Runs all probes in order. A probe that raises becomes a finding."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from vidc.compiler.doctor.probes import (
    Finding,
    Status,
    probe_backends,
    probe_cache,
    probe_cpu,
    probe_cuda,
    probe_cxx,
    probe_onnxruntime,
    probe_packages,
    probe_python,
)
from vidc.plugins.errors import VidcError


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
