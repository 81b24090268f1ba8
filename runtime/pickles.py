"""Refusal of pickles in PyTorch packages: unpickling runs any code that the file names.

A ``.pt2`` package is a zip archive of stored members below one folder. Pickles in it are sample
inputs (``data/sample_inputs/*.pt``), custom objects, and tensors written with ``torch.save``,
which are archives within the archive. Raw tensors may begin with any bytes, so members are
classified by name and declaration, not by their first bytes.
"""

import json
import zipfile
from pathlib import Path, PurePosixPath
from typing import Any

from vidc.plugins.errors import GateError
from vidc.runtime.document import unreadable

_PICKLE_SUFFIXES = frozenset({".pkl", ".pickle", ".pt", ".pth"})
_OBJECT_PREFIXES = ("custom_obj_", "opaque_obj_")
_MAX_CONFIG_BYTES = 16 * 2**20
_DAMAGE = (
    zipfile.BadZipFile,
    ValueError,
    EOFError,
    RecursionError,
    NotImplementedError,
    OSError,  # a damaged offset makes a seek fail
)
_ZIP_MAGIC = b"PK\x03\x04"


def is_sample_input(name: str) -> bool:
    """Returns True if a member's name is that of an export's pickled sample inputs."""
    return "sample_inputs" in PurePosixPath(name).parts[:-1]


def find_pickles(package: Path) -> tuple[str, ...]:
    """Returns the members of a package that loading might unpickle.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, the package is not a plain zip archive;
            ``VIDC-BUNDLE-UNREADABLE``.
    """
    try:
        with zipfile.ZipFile(package) as archive:
            members = archive.infolist()
            _check_members(package, members)
            return tuple(m.filename for m in members if m.file_size and _is_pickle(archive, m))
    except (FileNotFoundError, PermissionError) as error:
        raise unreadable(package, error) from error
    except _DAMAGE as error:
        raise _malformed(package, str(error)) from error


def refuse_pickles(package: Path) -> None:
    """Refuses a package that carries a pickle.

    Raises:
        GateError: ``VIDC-BUNDLE-PICKLE``, with the members' names; as raised by ``find_pickles``.
    """
    pickles = find_pickles(package)
    if pickles:
        raise GateError(
            "VIDC-BUNDLE-PICKLE",
            f"{package} carries pickles: {', '.join(repr(name) for name in pickles[:3])}",
            "do not load it unless you know who made it; vidc build writes packages without them",
        )


def _malformed(package: Path, what: str) -> GateError:
    return GateError(
        "VIDC-BUNDLE-MALFORMED",
        f"{package} is not a package that vidc wrote: {what[:200]}",
        "copy the bundle again from where it was built, or build it again",
    )


def _check_members(package: Path, members: list[zipfile.ZipInfo]) -> None:
    """Refuses duplicate, compressed or encrypted members, which readers may treat differently."""
    if len({member.filename for member in members}) != len(members):
        raise _malformed(package, "a member is there twice")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
            raise _malformed(package, f"{member.filename!r} is compressed or encrypted")


def _is_pickle(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bool:
    path = PurePosixPath(member.filename)
    if (
        is_sample_input(member.filename)
        or path.suffix.lower() in _PICKLE_SUFFIXES
        or path.name.startswith(_OBJECT_PREFIXES)
    ):
        return True
    with archive.open(member) as stream:
        if path.name.endswith("_config.json"):
            return _declares_pickle(stream.read(_MAX_CONFIG_BYTES))
        return stream.read(len(_ZIP_MAGIC)) == _ZIP_MAGIC and zipfile.is_zipfile(stream)


def _declares_pickle(config: bytes) -> bool:
    """Returns True if a table of tensors declares any of them pickled."""
    flags: list[Any] = []

    def collect(pairs: list[tuple[str, Any]]) -> None:
        flags.extend(value for key, value in pairs if key == "use_pickle")

    json.loads(config, object_pairs_hook=collect)
    return any(flags)
