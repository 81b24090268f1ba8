"""Entries of a manifest for the files of a folder."""

from pathlib import Path

from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import BundleFile


def file_entries(folder: Path) -> dict[str, BundleFile]:
    """Returns the entry of each file by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): file_entry(path) for path in files}
