"""The library of TensorRT's plugins, ``libvidc_plugins.so``: where it is, and how TensorRT gets it.

``VIDC_CUDA=1 pip install --no-build-isolation .`` builds it into the package where TensorRT's
headers are.
"""

import ctypes
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError

NAME = "libvidc_plugins.so"
_BUILD = (
    "VIDC_TENSORRT_INCLUDE=<TensorRT's include folder> VIDC_CUDA=1 pip install "
    "--no-build-isolation . (needs nvcc of CUDA 13)"
)


def fault() -> UnavailableError | None:
    """What keeps the library in this package from serving, None if it serves.

    The error is ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``.
    """
    file = _file()
    if not file.is_file():
        return UnavailableError(
            "VIDC-KERNEL-LIBRARY", f"the library of TensorRT's plugins, {NAME}, is not installed",
            _BUILD,
        )  # fmt: skip
    try:
        found = ctypes.CDLL(str(file)).vidc_plugin_abi()
    except (OSError, AttributeError) as error:
        return UnavailableError(
            "VIDC-KERNEL-LIBRARY",
            f"the library of TensorRT's plugins cannot be loaded: {error}",
            f"build it again: {_BUILD}",
        )
    if found != PLUGIN_ABI:
        return UnavailableError(
            "VIDC-KERNEL-ABI",
            f"{file} has plugins of ABI {found}, this vidc has {PLUGIN_ABI}",
            f"build it again: {_BUILD}",
        )
    return None


@cache
def register(module: Any) -> None:
    """Gives TensorRT the library's creators, once a process.

    Args:
        module: TensorRT's own.

    Raises:
        UnavailableError: what ``fault`` returns.
    """
    if (found := fault()) is not None:
        raise found
    module.get_plugin_registry().load_library(str(_file()))


def _file() -> Path:
    return Path(str(files("vidc.plugins").joinpath(NAME)))
