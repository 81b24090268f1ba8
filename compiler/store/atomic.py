"""Atomic file writes."""

import contextlib
import json
import os
import uuid
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """Returns the JSON value in ``path``, None if it cannot be read or parsed."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def write_json(path: Path, value: Any) -> None:
    """Writes ``path`` atomically and creates its folder; readers see the old or the new value."""
    write_bytes(path, json.dumps(value, indent=1).encode())


def write_bytes(path: Path, data: bytes) -> None:
    """As ``write_json``, for bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def sync(path: Path) -> None:
    """Waits until a file's or a folder's contents are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(root: Path) -> None:
    """Waits until every file and folder under ``root`` is on disk."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            sync(Path(folder, name))
        sync(Path(folder))
