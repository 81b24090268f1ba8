"""Torch's exporters warn about their own internals; none of it is for the user of vidc."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_torch() -> Iterator[None]:
    """Silences deprecations inside torch and its notes on packages that vidc does not need."""
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
