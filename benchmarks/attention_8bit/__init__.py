"""Imports this checkout as vidc if vidc is not installed."""

import importlib.util
import sys
import types
from pathlib import Path

if importlib.util.find_spec("vidc") is None:
    package = types.ModuleType("vidc")
    package.__path__ = [str(Path(__file__).parents[2])]
    sys.modules["vidc"] = package
