"""Versions of installed packages, which are part of the keys of what is built with them."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version

from vidc.plugins.errors import UnavailableError


def versions(*packages: str, extra: str = "build") -> dict[str, str]:
    """The versions of these distributions by name, each looked up once a process.

    Args:
        packages: names.
        extra: of vidc, which brings them.

    Raises:
        UnavailableError: ``VIDC-ENV-BUILD``, one is not installed.
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
