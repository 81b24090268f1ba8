"""Description of a ``.pt2`` package from its archive; nothing in it is loaded."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Any

from vidc.compiler.backends.aoti.convolution_choices import SUFFIX, Choice, Choices
from vidc.compiler.inspect.beside import read_beside
from vidc.compiler.inspect.changes import Sections, sections
from vidc.plugins.archive import Archive
from vidc.plugins.archive import Member as Stored
from vidc.plugins.errors import GateError
from vidc.runtime.pickles import find_pickles, open_package
from vidc.runtime.strict import plain

_MAX_METADATA_BYTES = 2**20
_ENGINES = ("data", "aotinductor")


class Content(StrEnum):
    """Kind of content."""

    ENGINE = "AOTInductor engine"
    PROGRAM = "ExportedProgram"


@dataclass(frozen=True)
class Member:
    """File of a package: bytes and the archive's checksum."""

    bytes: int
    crc32: str


@dataclass(frozen=True)
class Package:
    """Description of a package.

    Attributes:
        content: kind of content.
        format_version: version of the archive format.
        metadata: build machine of an engine; empty for a program.
        pickles: members that loading might unpickle; vidc refuses to load a package with any.
        files: files by path below the package's own folder.
        convolutions: chosen form of each convolution that has several, by the text of its sizes,
            from the file beside the package.
    """

    content: Content
    format_version: str
    metadata: dict[str, Any]
    pickles: tuple[str, ...]
    files: dict[str, Member]
    convolutions: dict[str, Choice]


def describe_package(path: Path) -> Package:
    """Describes a package.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED`` if it is no package; ``VIDC-BUNDLE-UNREADABLE``; what
            ``convolutions_of`` raises.
    """
    archive = open_package(path)
    pickles = find_pickles(archive)
    members = {_below(name): name for name in archive.members}
    try:
        return Package(
            content=_content(members),
            format_version=_read(archive, members["archive_version"]).decode("ascii").strip(),
            metadata=_metadata(archive, members),
            pickles=tuple(_below(name) for name in pickles),
            files={below: _described(archive.members[name]) for below, name in members.items()},
            convolutions=convolutions_of(path),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"{path} is not a package of PyTorch's: {str(error)[:200]}",
            "copy it again from where it was built, or build it again",
        ) from error


def convolutions_of(package: Path) -> dict[str, Choice]:
    """Returns the choices that a build wrote beside a package; empty if it wrote none.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, ``VIDC-BUNDLE-FIELD``.
    """
    found = read_beside(package.with_suffix(SUFFIX), Choices, "convolutions")
    return {} if found is None else dict(found.choices)


def _described(member: Stored) -> Member:
    return Member(member.size, f"{member.crc32:08x}")


def _below(name: str) -> str:
    """Returns a member's path below the package's own folder."""
    return str(PurePosixPath(*PurePosixPath(name).parts[1:]))


def _content(members: Mapping[str, str]) -> Content:
    if any(PurePosixPath(name).parts[:2] == _ENGINES for name in members):
        return Content.ENGINE
    if any(name.startswith("models/") for name in members):
        return Content.PROGRAM
    raise ValueError("it holds neither an engine nor a program")


def _read(archive: Archive, name: str) -> bytes:
    if archive.members[name].size > _MAX_METADATA_BYTES:
        raise ValueError(f"{name!r} has {archive.members[name].size} bytes")
    return archive.read(name)


def _metadata(archive: Archive, members: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for below, name in members.items():
        if PurePosixPath(below).parts[:2] == _ENGINES and below.endswith("_metadata.json"):
            found |= json.loads(_read(archive, name))
    return found


def compare_packages(old: Package, new: Package) -> Sections:
    """Returns the differences between two packages: metadata, files, forms of convolutions."""
    return sections(_package_subjects(old), _package_subjects(new))


def _package_subjects(package: Package) -> dict[str, dict[str, Any]]:
    return {
        "package": {"content": package.content, "format_version": package.format_version},
        "metadata": package.metadata,
        "files": plain(package.files),
        "convolutions": {name: choice.form for name, choice in package.convolutions.items()},
    }
