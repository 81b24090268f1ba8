"""The library of CUDA kernels, ``libvidc_torch.so``: whether there is one, and loading it.

``VIDC_CUDA=1 pip install --no-build-isolation .`` builds it into the package. Loading it registers
its operators with torch, and touches no GPU.
"""

import ctypes
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch  # noqa: F401  # Its libraries have to be in the process before this one.

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError

NAME = "libvidc_torch.so"
_BUILD = "VIDC_CUDA=1 pip install --no-build-isolation . (needs nvcc of CUDA 13, and torch)"


@cache
def fault() -> UnavailableError | None:
    """Loads the library that lies in this package; what keeps it from serving, None if it serves.

    The error is ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``. Nothing is loaded again.
    """
    file = files("vidc.plugins").joinpath(NAME)
    if not file.is_file():
        return UnavailableError(
            "VIDC-KERNEL-LIBRARY", f"the library of CUDA kernels, {NAME}, is not installed", _BUILD
        )
    try:
        load(Path(str(file)))
    except UnavailableError as error:
        return error
    return None


def load(path: Path) -> None:
    """Registers the operators of a library with torch.

    Raises:
        UnavailableError: ``VIDC-KERNEL-LIBRARY``, the file cannot be loaded or is none of vidc's;
            ``VIDC-KERNEL-ABI``, it was built for another version of the operators.
    """
    try:
        library = ctypes.CDLL(str(path))
        found = library.vidc_plugin_abi()
        register = library.vidc_register_torch_operators
    except (OSError, AttributeError) as error:
        raise UnavailableError(
            "VIDC-KERNEL-LIBRARY",
            f"the library of CUDA kernels cannot be loaded: {error}",
            f"build it again, for this version of torch: {_BUILD}",
        ) from error
    if found != PLUGIN_ABI:
        raise UnavailableError(
            "VIDC-KERNEL-ABI",
            f"{path} has operators of ABI {found}, this vidc has {PLUGIN_ABI}",
            f"build it again: {_BUILD}",
        )
    register()
