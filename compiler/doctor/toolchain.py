"""What builds engines: ONNX Runtime, the C++ compiler of AOTInductor, the backends."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vidc.compiler.doctor.finding import Finding, Status

COMPILE_SECONDS = 60.0
SOURCE = '#include <string>\nextern "C" void probe(const char* s) { throw std::string(s); }\n'
"""Needs the C++ standard library, so that the linker has to say where it takes it from."""


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
    compiler = os.environ.get("CXX", "g++")
    found = shutil.which(compiler)
    if found is None:
        yield Finding(
            "c++", Status.MISSING, f"no {compiler}", "install g++ for the aoti backend on a CPU"
        )
        return
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(SOURCE)
        done = subprocess.run(
            [found, "-shared", "-fPIC", "-o", library, source],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
            check=False,
        )
        if done.returncode:
            reason = done.stderr.strip().splitlines()[:1]
            yield Finding("c++", Status.WARNING, f"{found} does not compile: {' '.join(reason)}")
        elif b"libstdc++.so" in library.read_bytes() or b"libc++.so" in library.read_bytes():
            yield Finding("c++", Status.GOOD, found)
        else:
            yield Finding(
                "c++",
                Status.WARNING,
                f"{found} links the C++ library statically: engines of aoti crash when loaded",
                "export CXX=/usr/bin/g++, or another compiler that links it dynamically",
            )
