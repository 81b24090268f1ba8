"""Contexts for torch's tracers and translators."""

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silences torch's internal deprecation warnings and notes about unused packages."""
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = registration.level
    registration.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "No complete tensor found", UserWarning)
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            yield
    finally:
        registration.setLevel(level)


@contextmanager
def tracing() -> Iterator[None]:
    """Silences torch and pauses the garbage collector.

    With thousands of live graph nodes, garbage collection takes a fifth of an export's time.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with quiet_torch():
            yield
    finally:
        if collecting:
            gc.enable()
