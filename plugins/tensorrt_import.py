"""Import of TensorRT's and TensorRT-RTX's Python modules.

When TensorRT-RTX's parser adds a plugin to a network, it opens ``libtensorrt_rtx.so``. The package
has ``libtensorrt_rtx.so.1`` alone, and without the other name the parser ends the process. So
``import_tensorrt`` loads the package's libraries through a private folder of links, which has both
names. The dynamic loader then searches that folder, as the libraries' own (``$ORIGIN``). The
installed package stays unchanged.
"""

import ctypes
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

RTX = "tensorrt_rtx"
_LIBRARIES = "tensorrt_rtx_libs"
"""The package of TensorRT-RTX's libraries."""
_CORE, _PARSER = "libtensorrt_rtx.so.1", "libtensorrt_onnxparser_rtx.so.1"
_OPENED = "libtensorrt_rtx.so"
"""The name by which the parser opens ``_CORE``."""
_ORIGIN = 6
"""``RTLD_DI_ORIGIN`` of dlinfo: the folder that a library was loaded from."""
_PATH_BYTES = 4096

_links: list[TemporaryDirectory[str]] = []
"""The private folder; it is removed when the process ends."""


def import_tensorrt(name: str) -> Any:
    """Imports ``tensorrt`` or ``tensorrt_rtx`` and returns the module.

    Raises:
        ImportError: it is not installed.
        OSError: its libraries cannot be loaded.
    """
    if name == RTX and name not in sys.modules:
        _load_through_links()
    return import_module(name)


def finds_its_library(name: str) -> bool:
    """Returns True if the parser of an imported module can add plugins to a network."""
    if name != RTX:
        return True
    folder = _package()
    if folder is not None:
        parser = ctypes.CDLL(str(folder / _PARSER))
        origin = ctypes.create_string_buffer(_PATH_BYTES)
        handle = ctypes.c_void_p(parser._handle)
        if ctypes.CDLL(None).dlinfo(handle, _ORIGIN, origin) == 0:
            path = Path(origin.value.decode()) / _OPENED
            if path.exists():
                return True
    try:
        ctypes.CDLL(_OPENED)  # On the loader's path by other means.
    except OSError:
        return False
    return True


def _load_through_links() -> None:
    package = _package()
    if package is None or not all((package / name).is_file() for name in (_CORE, _PARSER)):
        return  # Installed in another way: `finds_its_library` says if the parser can add plugins.
    _links.append(TemporaryDirectory(prefix="vidc-tensorrt-rtx-"))
    folder = Path(_links[-1].name)
    for name in (_CORE, _PARSER):
        (folder / name).symlink_to(package / name)
    (folder / _OPENED).symlink_to(package / _CORE)
    for name in (_CORE, _PARSER):
        ctypes.CDLL(str(folder / name))


def _package() -> Path | None:
    """Returns the folder of the package's libraries, None if it is not installed."""
    spec = find_spec(_LIBRARIES)
    folders = None if spec is None else spec.submodule_search_locations
    return Path(folders[0]) if folders else None
