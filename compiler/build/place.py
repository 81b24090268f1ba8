"""Import of a stage's output from a portable build folder that another machine wrote."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from vidc.compiler.store.stage import Key, Stage, Workspace
from vidc.plugins.archive import Archive
from vidc.plugins.errors import GateError
from vidc.runtime.document import FileEntry, refuse_links, unreadable
from vidc.runtime.pickles import open_package, refuse_pickles

_CHUNK = 2**22
_CALLED = frozenset({"target", "as_operator"})
"""Fields of a graph that name a function to call."""
_OPERATOR = re.compile(
    r"torch\.ops\.(aten|vidc)\.((?!__)\w+|__(and|or|xor)__)\.(?!__)\w+"
    r"|torch\.ops\.higher_order\.auto_functionalized_v2"
    r"|_operator\.getitem"
)
"""Names that may be called: operators of PyTorch and vidc."""
_EVALUATED = frozenset({"expr_str", "guards_code", "range_constraints"})
"""Fields of a graph that PyTorch evaluates or compiles; they have no value in a static graph."""
_MAX_GRAPH_BYTES = 2**28


@dataclass(frozen=True)
class Place(Stage):
    """Copies the output of a stage that another machine ran, and checks it.

    Its result does not get the key that the other machine recorded: the store would then take the
    imported files for a result that was computed here from the same inputs.

    Attributes:
        stage: name of the stage that ran.
        source: folder of its output.
        recorded: the key that the other machine recorded.
        files: recorded sizes and digests by path.
    """

    stage: str
    source: Path
    recorded: str
    files: Mapping[str, FileEntry]

    @property
    def name(self) -> str:
        """The name of the stage that ran."""
        return self.stage

    def key(self) -> Key:
        """Returns the key: the recorded key and the digests of the files."""
        digests = {path: entry.sha256 for path, entry in self.files.items()}
        return Key((__name__,), {"recorded": self.recorded, "files": digests})

    def run(self, workspace: Workspace) -> None:
        """Copies the files.

        Raises:
            GateError: ``VIDC-BUNDLE-ALTERED``, ``-PATH`` or ``-UNREADABLE`` for a file that
                changed; what ``refuse_code`` raises.
        """
        for path, entry in self.files.items():
            refuse_links(self.source, path)
            target = workspace.output / path
            target.parent.mkdir(parents=True, exist_ok=True)
            found = _copy(self.source / path, target)
            if found != entry:
                raise GateError(
                    "VIDC-BUNDLE-ALTERED",
                    f"{self.source / path} has {found.size} bytes with SHA-256 {found.sha256}, "
                    f"expected {entry.size} with {entry.sha256}",
                    "copy the folder again from where it was made, or begin the build again",
                )
            if target.suffix == ".pt2":
                refuse_code(target)


def _copy(source: Path, target: Path) -> FileEntry:
    """Copies a file; returns the size and digest of what was copied."""
    digest, size = hashlib.sha256(), 0
    with target.open("wb") as sink:
        try:
            stream = source.open("rb")
        except OSError as error:
            raise unreadable(source, error) from error
        with stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                sink.write(chunk)
    return FileEntry(size, digest.hexdigest())


def refuse_code(program: Path) -> None:
    """Refuses an exported program (``.pt2``) that has pickles or does more than call operators.

    PyTorch resolves the names in a program in its own modules, evaluates symbolic expressions and
    compiles guards. Programs that vidc exports only call operators, and are static.

    Raises:
        GateError: ``VIDC-PORTABLE-CODE``; what ``refuse_pickles`` raises.
    """
    archive = open_package(program)
    refuse_pickles(archive)
    for name in archive.members:
        if PurePosixPath(name).parent.name == "models":
            _check_graph(program, archive, name)


def _check_graph(program: Path, archive: Archive, name: str) -> None:
    if archive.members[name].size > _MAX_GRAPH_BYTES:
        raise _refused(program, f"{name} is larger than {_MAX_GRAPH_BYTES} bytes")
    try:
        json.loads(archive.read(name), object_pairs_hook=_check_fields)
    except (ValueError, RecursionError) as error:
        raise _refused(program, f"{name}: {error}") from error


def _check_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object of a graph; raises ValueError for a field that could run other code."""
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
