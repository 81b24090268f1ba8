"""Python and the packages that vidc declares, installed or missing, with the extra they come by."""

import platform
from collections.abc import Iterator
from importlib import metadata

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from vidc.compiler.doctor.finding import Finding, Status

DISTRIBUTION = "vidc"
DEVELOPMENT = "dev"


def probe_python() -> Iterator[Finding]:
    """Whether this Python is one that vidc supports."""
    version = platform.python_version()
    supported = SpecifierSet(metadata.metadata(DISTRIBUTION)["Requires-Python"])
    if supported.contains(version):
        yield Finding("python", Status.GOOD, version)
    else:
        yield Finding(
            "python", Status.BROKEN, f"{version}, supported: {supported}", "use a supported Python"
        )


def probe_packages() -> Iterator[Finding]:
    """Each package that vidc, or an extra for its users, requires."""
    extras = metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    for text in metadata.requires(DISTRIBUTION) or []:
        requirement = Requirement(text)
        for extra in ("", *extras):
            if extra != DEVELOPMENT and _belongs(requirement, extra):
                yield examine_package(requirement, extra)
                break


def _belongs(requirement: Requirement, extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def examine_package(requirement: Requirement, extra: str) -> Finding:
    """Whether a package is installed at a version that fits.

    Args:
        requirement: the package and its versions.
        extra: the extra of vidc that brings it, empty for what every install has.
    """
    name = requirement.name
    wanted = f"{DISTRIBUTION}[{extra}]" if extra else DISTRIBUTION
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        status = Status.MISSING if extra else Status.BROKEN
        return Finding(name, status, "not installed", f"pip install '{wanted}'")
    if not requirement.specifier.contains(version, prereleases=True):
        detail = f"{version}, supported: {requirement.specifier}"
        return Finding(name, Status.BROKEN, detail, f"pip install '{name}{requirement.specifier}'")
    return Finding(name, Status.GOOD, version)
