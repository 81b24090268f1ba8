"""Precision of float32 matmuls and convolutions, a setting of the whole process."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import Lock
from typing import Any

import torch

_EXACT = ("none", "ieee")
"""Values of ``fp32_precision`` that give float32: the default, and the explicit setting."""
_lock = Lock()
_inside = 0
_restore: list[Callable[[], object]] = []


@contextmanager
def exact_float32() -> Iterator[None]:
    """Computes matmuls, and convolutions on a CPU, of float32 tensors in float32 in the block.

    Engines are validated with these settings, and a caller's
    ``torch.set_float32_matmul_precision("medium")`` would change their results. cuDNN's
    convolutions keep the caller's setting, TF32 by default. The settings belong to the process: the
    first thread that enters changes them, and the last one that leaves restores the caller's.
    """
    global _inside
    with _lock:
        if not _inside:
            _set_exact()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            while not _inside and _restore:
                _restore.pop()()


def _set_exact() -> None:
    """Sets exact precisions, and notes in ``_restore`` what was set before."""
    try:
        matmuls = torch.get_float32_matmul_precision()
    except RuntimeError:  # The caller set backends apart, as below.
        matmuls = "highest"
    if matmuls != "highest":
        torch.set_float32_matmul_precision("highest")
        _restore.append(partial(torch.set_float32_matmul_precision, matmuls))
    backends: Any = torch.backends
    mkldnn = backends.mkldnn
    for part in (backends, backends.cuda.matmul, mkldnn.matmul, mkldnn.conv):
        before = part.fp32_precision
        if before not in _EXACT:
            part.fp32_precision = _EXACT[1]
            _restore.append(partial(setattr, part, "fp32_precision", before))
