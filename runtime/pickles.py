"""Refusal of pickles in PyTorch packages: unpickling runs any code that the file names.

A ``.pt2`` package is an archive of members below one folder. Pickles in it are sample inputs
(``data/sample_inputs/*.pt``), custom objects, and tensors written with ``torch.save``, which are
archives within the archive. Raw tensors may begin with any bytes, so members are classified by name
and declaration, not by their first bytes.
"""

import io
import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from vidc.plugins.archive import Archive
from vidc.plugins.errors import GateError
from vidc.runtime.document import unreadable

_PICKLE_SUFFIXES = frozenset({".pkl", ".pickle", ".pt", ".pth"})
_OBJECT_PREFIXES = ("custom_obj_", "opaque_obj_")
_MAX_CONFIG_BYTES = 16 * 2**20
_ZIP_MAGIC = b"PK\x03\x04"


def is_sample_input(name: str) -> bool:
    """Returns True if a member's name is that of an export's pickled sample inputs."""
    return "sample_inputs" in PurePosixPath(name).parts[:-1]


def open_package(package: Path) -> Archive:
    """Reads a package that may carry pickles.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, as ``Archive``; ``VIDC-BUNDLE-UNREADABLE``.
    """
    try:
        return Archive(package.read_bytes(), str(package))
    except OSError as error:
        raise unreadable(package, error) from error


def find_pickles(archive: Archive) -> tuple[str, ...]:
    """Returns the members of a package that loading might unpickle.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, a table of tensors cannot be read.
    """
    found = archive.members.items()
    return tuple(name for name, member in found if member.size and _is_pickle(archive, name))


def refuse_pickles(archive: Archive) -> None:
    """Refuses a package that carries a pickle.

    Raises:
        GateError: ``VIDC-BUNDLE-PICKLE``, with the members' names; as raised by ``find_pickles``.
    """
    pickles = find_pickles(archive)
    if pickles:
        raise GateError(
            "VIDC-BUNDLE-PICKLE",
            f"{archive.name} carries pickles: {', '.join(repr(name) for name in pickles[:3])}",
            "do not load it unless you know who made it; vidc build writes packages without them",
        )


def _is_pickle(archive: Archive, name: str) -> bool:
    path = PurePosixPath(name)
    if (
        is_sample_input(name)
        or path.suffix.lower() in _PICKLE_SUFFIXES
        or path.name.startswith(_OBJECT_PREFIXES)
    ):
        return True
    if path.name.endswith("_config.json"):
        return _declares_pickle(archive, name)
    begins = archive.starts_with(name, _ZIP_MAGIC)
    return begins and zipfile.is_zipfile(io.BytesIO(archive.read(name)))


def _declares_pickle(archive: Archive, name: str) -> bool:
    """Returns True if a table of tensors declares any of them pickled."""
    flags: list[Any] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        flags.extend(value for key, value in pairs if key == "use_pickle")

    if archive.members[name].size > _MAX_CONFIG_BYTES:
        archive.refuse(f"{name} is larger than {_MAX_CONFIG_BYTES} bytes")
    try:
        json.loads(archive.read(name), object_pairs_hook=collect)
    except (ValueError, RecursionError) as error:
        archive.refuse(f"{name} is no table of tensors: {str(error)[:100]}")
    return any(flags)
