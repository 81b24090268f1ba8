"""What torch's tracers and translators run under."""

import gc
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def tracing() -> Iterator[None]:
    """Keeps torch's warnings about its own internals from the user, and its graphs from the GC.

    Graphs of thousands of nodes are all alive, and looking for garbage among them takes a fifth
    of the time.
    """
    registration = logging.getLogger("torch.onnx._internal.exporter._registration")
    level, collecting = registration.level, gc.isenabled()
    registration.setLevel(logging.ERROR)
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            warnings.filterwarnings("ignore", "No complete tensor found", UserWarning)
            yield
    finally:
        registration.setLevel(level)
        if collecting:
            gc.enable()
