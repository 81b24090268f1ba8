"""TOML files: those shipped with vidc and those a user names."""

import tomllib
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from vidc.plugins.errors import UsageError


def shipped(folder: str) -> dict[str, Traversable]:
    """The TOML files of ``configs/<folder>`` by name, sorted."""
    entries = (files("vidc.configs") / folder).iterdir()
    found = {e.name.removesuffix(".toml"): e for e in entries if e.name.endswith(".toml")}
    return dict(sorted(found.items()))


def shipped_text(name: str) -> str:
    """The text file ``configs/<name>``."""
    return (files("vidc.configs") / name).read_text(encoding="utf-8")


def read_toml(file: Path | Traversable) -> dict[str, Any]:
    """The content of a TOML file.

    Raises:
        UsageError: ``VIDC-CONFIG-FILE`` if it cannot be read or is not TOML.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            "VIDC-CONFIG-FILE", f"cannot read {file}: {error.strerror}", "check the path"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            "VIDC-CONFIG-FILE", f"{file} is not TOML: {error}", "mend the line it names"
        ) from error
