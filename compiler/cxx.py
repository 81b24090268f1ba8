"""The C++ compiler that AOTInductor calls: whether it makes libraries that load."""

import os
import subprocess
import tempfile
from pathlib import Path

_TIMEOUT_SECONDS = 60.0
_SOURCE = '#include <string>\nextern "C" void probe(const char* s) { throw std::string(s); }\n'
"""Needs the C++ standard library, so that the linker has to say where it takes it from."""
_STANDARD_LIBRARIES = (b"libstdc++.so", b"libc++.so")


def cxx() -> str:
    """The command that PyTorch runs: environment variable ``CXX``, or ``g++``."""
    return os.environ.get("CXX", "g++")


def cxx_version() -> str:
    """The first line that the compiler says of its version; "none" where there is no compiler."""
    try:
        return _run(cxx(), "--version").splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "none"


def cxx_defect() -> str | None:
    """Why the compiler cannot build engines, or None if it can; takes a quarter of a second."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_SOURCE)
        try:
            _run(cxx(), "-shared", "-fPIC", "-o", str(library), str(source))
        except OSError:
            return f"there is no C++ compiler {cxx()!r}"
        except subprocess.TimeoutExpired:
            return f"{cxx()} does not finish a short file within {_TIMEOUT_SECONDS:.0f} s"
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip() or f"exit status {error.returncode}").splitlines()[0]
            return f"{cxx()} does not compile: {reason}"
        linked = library.read_bytes()
    if not any(name in linked for name in _STANDARD_LIBRARIES):
        return f"{cxx()} links the C++ library statically: engines that it builds crash when loaded"
    return None


def _run(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
    ).stdout
