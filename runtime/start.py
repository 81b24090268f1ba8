"""Starts a GPU in a thread while torch is imported, and loads bundles.

On an H100 machine, the import takes about 3 s and creating the CUDA context 0.5 s; they overlap.
This module imports no torch.
"""

import ctypes
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from vidc.plugins.untrusted_files import require_regular

if TYPE_CHECKING:
    from vidc.runtime.bundle import Bundle
    from vidc.runtime.integrity import VerifyMode

_MANIFEST, _MAX_BYTES = "manifest.json", 2**24
"""Name and limit of a manifest, as in ``manifest`` and ``document``, which import torch."""
_FIRST = 0
"""The GPU that is torch's current one in a new process."""


def load(
    path: Path | str,
    verify: "VerifyMode" = "full",
    *,
    trust: Path | str | Iterable[Path | str] | None = None,
    digest: str | None = None,
) -> "Bundle":
    """Loads a bundle as ``vidc.runtime.bundle.load`` does; starts its GPU if torch is not imported.

    Raises:
        VidcError: as raised by ``vidc.runtime.bundle.load``.
    """
    start_gpu(path)
    from vidc.runtime import bundle

    return bundle.load(path, verify, trust=trust, digest=digest)


def start_gpu(folder: Path | str) -> Thread | None:
    """Starts the GPU in a thread if a bundle is for one and torch is not imported yet.

    Errors are ignored here: ``load`` meets them again and raises them.

    Returns:
        The thread; None if there is nothing to start.
    """
    if "torch" in sys.modules or not _is_for_gpu(folder):
        return None
    thread = Thread(target=_make_context, name="vidc-start-gpu", daemon=True)
    thread.start()
    return thread


def _is_for_gpu(folder: Path | str) -> bool:
    """Returns True if a manifest, which nothing has checked yet, names a GPU."""
    try:
        path = Path(folder, _MANIFEST)
        require_regular(path)
        with path.open("rb") as stream:
            manifest = json.loads(stream.read(_MAX_BYTES))
        return manifest["target"]["compute_capability"] is not None
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return False


def _make_context() -> None:
    """Makes the context that torch's CUDA runtime uses, if there is a driver and a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if not driver.cuInit(0) and not driver.cuDeviceGet(ctypes.byref(device), _FIRST):
        # Kept for the life of the process, as torch keeps it.
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
