"""What builds engines: ONNX Runtime, the C++ compiler of AOTInductor, the backends."""

from collections.abc import Iterator

from vidc.compiler.cxx import cxx_defect, cxx_version
from vidc.compiler.doctor.finding import Finding, Status


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

    for name in backends.names():
        reasons = {d: backends.backend(name).unavailable(d) for d in ("cpu", "cuda")}
        devices = [device for device, reason in reasons.items() if reason is None]
        if devices:
            yield Finding(f"backend {name}", Status.GOOD, f"builds for {', '.join(devices)}")
        else:
            why = "; ".join(f"{device}: {reason}" for device, reason in reasons.items())
            yield Finding(f"backend {name}", Status.MISSING, why)


def probe_cxx() -> Iterator[Finding]:
    """Whether the compiler that AOTInductor calls is there and makes libraries that load."""
    defect = cxx_defect()
    if defect is None:
        yield Finding("c++", Status.GOOD, cxx_version())
    else:
        status = Status.MISSING if defect.missing else Status.WARNING
        yield Finding("c++", status, defect.reason, defect.hint)
