"""Refuses exported programs that could make PyTorch run code of their author's.

A program names what it calls, and PyTorch looks the names up in its own modules; it evaluates
symbolic expressions and compiles guards. What vidc exports calls operators alone and is static.
"""

import json
import re
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from vidc.plugins.errors import GateError
from vidc.runtime.pickles import refuse_pickles

_CALLED = frozenset({"target", "as_operator"})
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|vidc)\.((?!__)\w+|__(and|or|xor)__)\.(?!__)\w+"
    r"|torch\.ops\.higher_order\.auto_functionalized_v2"
    r"|_operator\.getitem"
)
_EVALUATED = frozenset({"expr_str", "guards_code", "range_constraints"})
_MAX_GRAPH_BYTES = 2**28


def refuse_code(program: Path) -> None:
    """Refuses an exported program, ``.pt2``, that holds pickles or more than calls of operators.

    Raises:
        GateError: ``VIDC-PORTABLE-CODE``; what ``refuse_pickles`` raises.
    """
    refuse_pickles(program)
    with zipfile.ZipFile(program) as archive:
        for member in archive.infolist():
            if PurePosixPath(member.filename).parent.name == "models":
                _check_graph(program, archive, member)


def _check_graph(program: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> None:
    if member.file_size > _MAX_GRAPH_BYTES:
        raise _refused(program, f"{member.filename} is larger than {_MAX_GRAPH_BYTES} bytes")
    try:
        json.loads(archive.read(member), object_pairs_hook=_check_fields)
    except (ValueError, RecursionError, zipfile.BadZipFile) as error:
        raise _refused(program, f"{member.filename}: {error}") from error


def _check_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of a graph; ValueError for a field that may do more than call an operator."""
    for name, value in pairs:
        if name in _CALLED and isinstance(value, str) and not _OPERATOR.fullmatch(value):
            raise ValueError(f"it calls {value[:80]!r}, which is no operator")
        if name in _EVALUATED and value:
            raise ValueError(f"it is not static: it has {name}")
    return dict(pairs)


def _refused(program: Path, why: str) -> GateError:
    return GateError(
        "VIDC-PORTABLE-CODE",
        f"{program} is not a program that vidc exported: {why[:300]}",
        "do not finish this build unless you know who began it; begin it again otherwise",
    )
