"""Versions of installed packages, for the keys of results."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from vidc.plugins.errors import UnavailableError


def versions(*packages: str, extra: str = "build") -> dict[str, str]:
    """Returns the versions of distributions by name, each looked up once per process.

    Args:
        packages: names.
        extra: extra of vidc that installs them.

    Raises:
        UnavailableError: ``VIDC-ENV-BUILD``, a distribution is not installed.
    """
    return {package: _version(package, extra) for package in packages}


@cache
def _version(package: str, extra: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError as error:
        raise UnavailableError(
            "VIDC-ENV-BUILD",
            f"this build needs the package {package}, which is not installed",
            f"pip install 'vidc[{extra}]'",
        ) from error
