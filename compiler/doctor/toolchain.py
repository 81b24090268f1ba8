"""What builds engines: ONNX Runtime, the C++ compiler of AOTInductor, the backends."""

from collections.abc import Iterator

from vidc.compiler.backends.aoti.cxx import cxx_defect, cxx_version
from vidc.compiler.config.targets import AUTO, Target, find_target, targets
from vidc.compiler.doctor.finding import Finding, Status
from vidc.plugins.errors import UnavailableError


def probe_onnxruntime() -> Iterator[Finding]:
    """Whether ONNX Runtime loads, and on what it can run."""
    import onnxruntime

    yield Finding(
        "onnxruntime providers",
        Status.GOOD,
        ", ".join(onnxruntime.get_available_providers()),
    )


def probe_backends() -> Iterator[Finding]:
    """What each backend can build for on this machine."""
    from vidc.compiler import backends

    here = _targets_here()
    for name in backends.names():
        reasons = {target.name: backends.backend(name).unavailable(target) for target in here}
        able = [target for target, reason in reasons.items() if reason is None]
        if able:
            yield Finding(f"backend {name}", Status.GOOD, f"builds for {', '.join(able)}")
        else:
            why = "; ".join(f"{target}: {reason}" for target, reason in reasons.items())
            yield Finding(f"backend {name}", Status.MISSING, why)


def _targets_here() -> list[Target]:
    """The CPU, and the GPU if there is one that a target describes."""
    cpu = targets()["cpu"]
    try:
        found = find_target(AUTO, "")
    except UnavailableError:
        return [cpu]
    return [cpu, found] if found.is_gpu else [cpu]


def probe_cxx() -> Iterator[Finding]:
    """Whether the compiler that AOTInductor calls is there and makes libraries that load."""
    defect = cxx_defect()
    if defect is None:
        yield Finding("c++", Status.GOOD, cxx_version())
    else:
        status = Status.MISSING if defect.missing else Status.WARNING
        yield Finding("c++", status, defect.reason, defect.hint)
