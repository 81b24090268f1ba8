"""Skips tests if ModelOpt is not installed. CI has it, by the extra `dev`."""

from importlib.util import find_spec

import pytest

needs_modelopt = pytest.mark.skipif(
    find_spec("modelopt") is None, reason="nvidia-modelopt is not installed"
)
