"""Parser of a kernel's declaration in PTX: threads, parameters, and which of them it reads."""

import re
from dataclasses import dataclass

from vidc.plugins.errors import BuildError
from vidc.plugins.installation import install_extra

_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\((.*?)\)(.*?)\{(.*)", re.DOTALL)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+\d+\s+)?\.([a-z]+)(\d+)\s+[\w$]+?(?:\[(\d+)\])?\s*$"
)
_THREADS = re.compile(r"\.reqntid\s+(\d+)((?:\s*,\s*1)*)\s*$", re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """Parameter of a kernel."""

    size: int
    """Bytes."""
    is_float: bool


@dataclass(frozen=True)
class Entry:
    """Declaration of a kernel."""

    symbol: str
    threads: int
    """Threads of a block, along x."""
    parameters: tuple[Parameter, ...]
    read: frozenset[int]
    """Indices of the parameters that the code reads."""


def parse_entry(ptx: str) -> Entry:
    """Parses the only kernel of ``ptx``.

    Raises:
        BuildError: ``VIDC-KERNEL-PARAMETERS``, there is not exactly one kernel, or its syntax is
            unexpected.
    """
    if len(re.findall(r"\.entry\b", ptx)) != 1:
        raise _unreadable("it does not have one kernel")
    entry = _ENTRY.search(ptx)
    if entry is None:
        raise _unreadable("its kernel is not written as expected")
    symbol, listed, directives, body = entry.groups()
    threads = _THREADS.search(directives)
    if threads is None:
        raise _unreadable("its kernel does not fix the threads of a block, all along x")
    read = re.findall(rf"\b{re.escape(symbol)}_param_(\d+)\b", body)
    return Entry(
        symbol,
        int(threads[1]),
        tuple(_parameter(text) for text in listed.split(",")),
        frozenset(map(int, read)),
    )


def _parameter(text: str) -> Parameter:
    match = _PARAMETER.match(text.strip())
    if match is None:
        raise _unreadable(f"a parameter is not written as expected: {text.strip()[:80]!r}")
    kind, bits, count = match.groups()
    return Parameter(int(bits) // 8 * int(count or 1), kind == "f" and count is None)


def _unreadable(reason: str) -> BuildError:
    return BuildError(
        "VIDC-KERNEL-PARAMETERS",
        f"the PTX of a compiled kernel cannot be read: {reason}",
        f"install the versions that vidc names: {install_extra('cuda')}",
    )
