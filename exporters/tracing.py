"""What torch's tracers and translators run under."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from vidc.exporters.quiet import quiet_torch


@contextmanager
def tracing() -> Iterator[None]:
    """Silences torch and pauses the garbage collector.

    Thousands of graph nodes are alive at once, and looking for garbage among them takes a fifth
    of the time of an export.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        with quiet_torch():
            yield
    finally:
        if collecting:
            gc.enable()
