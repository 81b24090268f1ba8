"""Record of a validated bundle: digests of its manifest's fields, in a file beside it.

The manifest lists the digest of every file but its own. The record has the digest of every field
but ``files`` and ``signature``, so that a change to a field after the validation is found.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidc.plugins.errors import GateError
from vidc.runtime.document import AGAIN, parse_document
from vidc.runtime.files import Files
from vidc.runtime.manifest import Manifest, canonical, digest
from vidc.runtime.strict import plain, read

RECORD_NAME = "validated.json"
SCHEMA = 1
_ELSEWHERE = ("files", "signature")


@dataclass(frozen=True)
class Record:
    """Digests of a manifest's fields by name, and of its engines by component."""

    fields: dict[str, str]
    engines: dict[str, str]

    @classmethod
    def of(cls, manifest: Manifest) -> "Record":
        """Returns the record of a manifest."""
        fields: dict[str, Any] = plain(manifest)
        engines = fields.pop("engines")
        for name in _ELSEWHERE:
            del fields[name]
        return cls(
            {name: digest(value) for name, value in fields.items()},
            {name: digest(value) for name, value in engines.items()},
        )

    def write(self, folder: Path) -> None:
        """Writes the record into a bundle's folder."""
        (folder / RECORD_NAME).write_bytes(canonical({"schema": SCHEMA, **plain(self)}))


def compare_record(files: Files, manifest: Manifest) -> None:
    """Compares a manifest with the record of its bundle.

    Raises:
        GateError: ``VIDC-BUNDLE-RECORD``, a field was changed after the validation, or there is no
            record; ``VIDC-BUNDLE-FIELD`` or ``VIDC-BUNDLE-MALFORMED``, it cannot be read; as
            raised by ``Files.read``.
    """
    if RECORD_NAME not in manifest.files:
        raise _refusal(f"the manifest lists no {RECORD_NAME}")
    schema, table = parse_document(RECORD_NAME, files.read(RECORD_NAME))
    if schema != SCHEMA:
        raise _refusal(f"{RECORD_NAME} has schema {schema}, this vidc reads {SCHEMA}")
    recorded: Record = read(table, Record, "validated")
    found = Record.of(manifest)
    changed = _differing(found.fields, recorded.fields)
    changed += [f"engine {name}" for name in _differing(found.engines, recorded.engines)]
    if changed:
        raise _refusal(f"the manifest's {', '.join(changed)} changed after the validation")


def _differing(found: dict[str, str], recorded: dict[str, str]) -> list[str]:
    names = sorted(found.keys() | recorded.keys())
    return [name[:64] for name in names if found.get(name) != recorded.get(name)]


def _refusal(why: str) -> GateError:
    return GateError("VIDC-BUNDLE-RECORD", why, AGAIN)
