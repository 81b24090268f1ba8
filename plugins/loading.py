"""Loading of ``libvidc_torch.so`` (operators for torch) and ``libvidc_plugins.so`` (for TensorRT).

The wheel that ``make wheel-cuda`` builds has both in this package. In a checkout,
``VIDC_CUDA=1 pip install --no-build-isolation .`` builds the first one, and the second one if it
finds TensorRT's headers. Loading a library touches no GPU.
"""

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch  # noqa: F401  # libvidc_torch.so needs torch's libraries in the process.

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError

TORCH_LIBRARY = "libvidc_torch.so"
TENSORRT_LIBRARY = "libvidc_plugins.so"
NAMESPACE, VERSION = "vidc", "1"
"""Namespace and version of every plugin."""
_BUILD = (
    "install vidc's wheel for CUDA, or in a checkout run "
    "VIDC_CUDA=1 pip install --no-build-isolation . (needs nvcc of CUDA 13"
)


@dataclass(frozen=True)
class _Library:
    name: str
    title: str
    build: str
    """The command that builds it."""
    functions: tuple[str, ...] = ()
    """Required functions besides ``vidc_plugin_abi``."""

    @property
    def path(self) -> Path:
        return Path(str(files("vidc.plugins").joinpath(self.name)))

    def open(self, path: Path) -> ctypes.CDLL:
        """Opens a library and checks its functions and its ABI.

        Raises:
            UnavailableError: ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``.
        """
        if not path.is_file():
            raise UnavailableError(
                "VIDC-KERNEL-LIBRARY", f"{self.title}, {self.name}, is not installed", self.build
            )
        try:
            library = ctypes.CDLL(str(path))
            found = library.vidc_plugin_abi()
            for function in self.functions:
                getattr(library, function)
        except (OSError, AttributeError) as error:
            raise UnavailableError(
                "VIDC-KERNEL-LIBRARY",
                f"{self.title} cannot be loaded: {error}",
                f"build it again for the installed versions: {self.build}",
            ) from error
        if found != PLUGIN_ABI:
            raise UnavailableError(
                "VIDC-KERNEL-ABI",
                f"{path} has ABI {found}, this vidc has {PLUGIN_ABI}",
                f"build it again: {self.build}",
            )
        return library


_TORCH = _Library(
    TORCH_LIBRARY,
    "the library of CUDA kernels",
    f"{_BUILD}, and torch)",
    ("vidc_register_torch_operators",),
)
_TENSORRT = _Library(
    TENSORRT_LIBRARY,
    "the library of TensorRT plugins",
    f"{_BUILD}, and VIDC_TENSORRT_INCLUDE=<TensorRT's include folder>)",
)


def load_torch_library(path: Path) -> None:
    """Registers the operators of a library with torch.

    Raises:
        UnavailableError: ``VIDC-KERNEL-LIBRARY``, the file is missing, cannot be loaded or is not
            vidc's; ``VIDC-KERNEL-ABI``, it was built for another version of the operators.
    """
    _TORCH.open(path).vidc_register_torch_operators()


@cache
def torch_library_error() -> UnavailableError | None:
    """Loads the installed library once a process; returns the error if that fails, else None.

    The error is ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``.
    """
    try:
        load_torch_library(_TORCH.path)
    except UnavailableError as error:
        return error
    return None


def tensorrt_library_error() -> UnavailableError | None:
    """Returns the error if the installed library of plugins cannot be used, else None.

    The error is ``VIDC-KERNEL-LIBRARY`` or ``VIDC-KERNEL-ABI``.
    """
    try:
        _TENSORRT.open(_TENSORRT.path)
    except UnavailableError as error:
        return error
    return None


def register_tensorrt_plugins(module: Any, names: Iterable[str]) -> None:
    """Registers the plugins with TensorRT, once a process, and checks that some are there.

    Args:
        module: the Python module of TensorRT or TensorRT-RTX.
        names: names of the plugins that a network or a plan calls.

    Raises:
        UnavailableError: ``VIDC-KERNEL-LIBRARY``, or the library lacks one of them;
            ``VIDC-KERNEL-ABI``.
    """
    if (error := tensorrt_library_error()) is not None:
        raise error
    _register(module, str(_TENSORRT.path))
    registry = module.get_plugin_registry()
    missing = [name for name in names if registry.get_creator(name, VERSION, NAMESPACE) is None]
    if missing:
        raise UnavailableError(
            "VIDC-KERNEL-LIBRARY",
            f"{_TENSORRT.path} has no plugin {missing[0]}",
            f"build it again: {_TENSORRT.build}",
        )


@cache
def _register(module: Any, path: str) -> None:
    module.get_plugin_registry().load_library(path)


def tensorrt_plugin_error() -> str:
    """Returns the last error of a plugin in this thread, empty if there was none."""
    library = _TENSORRT.open(_TENSORRT.path)
    library.vidc_plugin_error.restype = ctypes.c_char_p
    text: bytes = library.vidc_plugin_error() or b""
    return text.decode(errors="replace")
