"""Config files beside a checkpoint: they must not contradict the preset."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from vidc.plugins.errors import BuildError, UsageError
from vidc.plugins.untrusted_files import require_regular

Expected = Mapping[str, Any]
"""The preset's value for each setting of a config; ``...`` accepts any value."""


def require_config(checkpoint: Path, expected: Mapping[str, Expected]) -> None:
    """Compares the ``config.json`` of a checkpoint with a part of the model.

    The config in a folder of weights belongs to them, and must have no setting that vidc does not
    know. A config beside a single file may belong to another model, as that of Wan's transformer
    lies beside ``Wan2.1_VAE.pth``: it is compared only if its class is one of ``expected``.

    Args:
        checkpoint: a file or folder.
        expected: settings by each class name that the part's config may have; empty if the part
            has no such configs.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: ``VIDC-CHECKPOINT-CONFIG``.
    """
    path = (checkpoint if checkpoint.is_dir() else checkpoint.parent) / "config.json"
    if not expected or not path.exists():
        return
    config = _read(path)
    name = config.get("_class_name")
    if isinstance(name, str) and name in expected:
        _require(path, config, expected[name], complete=True)
    elif checkpoint.is_dir():
        _refuse(f"{path} is of class {str(name)[:80]}, expected {' or '.join(expected)}")


def require_pipeline(folder: Path, expected: Mapping[str, Expected]) -> None:
    """Compares files of a diffusers pipeline with the model.

    Args:
        folder: of the pipeline.
        expected: settings of each file to compare, by its path in the folder.

    Raises:
        UsageError: ``VIDC-CHECKPOINT-MISSING``.
        BuildError: ``VIDC-CHECKPOINT-CONFIG``.
    """
    for name, settings in expected.items():
        path = folder / name
        if path.exists():
            _require(path, _read(path), settings, complete=False)


def _read(path: Path) -> dict[str, Any]:
    try:
        require_regular(path)
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise UsageError(
            "VIDC-CHECKPOINT-MISSING",
            f"cannot read {path}: {error.strerror}",
            "check its permissions",
        ) from error
    except (ValueError, RecursionError) as error:
        _refuse(f"{path} is no JSON: {error}")
    if not isinstance(config, dict):
        _refuse(f"{path} is not a JSON object")
    return config


def _require(path: Path, config: Expected, expected: Expected, *, complete: bool) -> None:
    """Refuses settings that differ, and with ``complete`` those that are not expected either."""
    wrong = []
    for name, found in config.items():
        # A null setting is unset. A name with a leading underscore is diffusers' own note.
        if found is None or name.startswith("_"):
            continue
        if name in expected:
            if not _same(found, expected[name]):
                wrong.append(f"{name} = {found}, the preset {expected[name]}")
        elif complete and found not in (False, []):
            wrong.append(f"{name} = {found}, which vidc does not know")
    if wrong:
        _refuse(f"{path} has {'; '.join(wrong)}"[:1000])


def _same(found: Any, expected: Any) -> bool:
    if expected is ...:
        return True
    if isinstance(expected, tuple | list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(map(_same, found, expected))
        )
    if isinstance(expected, float):
        return isinstance(found, float | int) and math.isclose(found, expected, rel_tol=1e-6)
    return type(found) is type(expected) and bool(found == expected)


def _refuse(what: str) -> NoReturn:
    raise BuildError(
        "VIDC-CHECKPOINT-CONFIG",
        what,
        "choose the preset of this model or --set what differs; if the config is of another model, "
        "name the weights' own files in place of the folder",
    )
