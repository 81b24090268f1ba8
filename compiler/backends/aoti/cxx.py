"""Checks of the C++ compiler that AOTInductor calls."""

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

_TIMEOUT_SECONDS = 60.0
_SOURCE = '#include <string>\nextern "C" void probe(const char* s) { throw std::string(s); }\n'
"""Source that needs the C++ standard library, so that the linker has to record it."""
_ANOTHER = "export CXX=/usr/bin/g++, or another compiler that links libstdc++ dynamically"
_STANDARD_LIBRARIES = (b"libstdc++.so", b"libc++.so")


def cxx() -> str:
    """Returns the command that PyTorch runs: environment variable ``CXX``, or ``g++``."""
    return os.environ.get("CXX", "g++")


def cxx_version() -> str:
    """Returns the first line of ``--version``, cached; "none" if there is no compiler."""
    return _version(cxx())


@cache
def _version(command: str) -> str:
    try:
        return _run(command, "--version").splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        return "none"


class Defect(NamedTuple):
    """Reason why the compiler cannot build engines, and a hint.

    ``missing`` is True if there is no compiler.
    """

    reason: str
    hint: str
    missing: bool = False


def cxx_defect() -> Defect | None:
    """Returns the compiler's defect or None, in a quarter of a second."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(_SOURCE)
        try:
            _run(cxx(), "-shared", "-fPIC", "-o", str(library), str(source))
        except OSError:
            return Defect(
                f"there is no C++ compiler {cxx()!r}",
                "install g++, or set CXX to a C++ compiler",
                missing=True,
            )
        except subprocess.TimeoutExpired:
            return Defect(
                f"{cxx()} does not finish a short file within {_TIMEOUT_SECONDS:.0f} s", _ANOTHER
            )
        except subprocess.CalledProcessError as error:
            reason = (error.stderr.strip() or f"exit status {error.returncode}").splitlines()[0]
            return Defect(f"{cxx()} does not compile: {reason}", _ANOTHER)
        linked = library.read_bytes()
    if not any(name in linked for name in _STANDARD_LIBRARIES):
        return Defect(
            f"{cxx()} links the C++ library statically: engines that it builds crash when loaded",
            _ANOTHER,
        )
    return None


def _run(*command: str) -> str:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=True
    ).stdout
