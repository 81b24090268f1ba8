"""Reader of the JSON files that a build writes beside an engine to describe it."""

import json
from pathlib import Path
from typing import Any

from vidc.plugins.errors import GateError
from vidc.plugins.untrusted_files import require_regular
from vidc.runtime.strict import read

MAX_BYTES = 2**26


def read_beside(path: Path, kind: type[Any], what: str) -> Any:
    """Returns the description in a file as a dataclass; None if there is no file.

    Args:
        path: the file.
        kind: the dataclass.
        what: the described thing, for messages.

    Raises:
        GateError: ``VIDC-BUNDLE-MALFORMED``, ``VIDC-BUNDLE-FIELD``.
    """
    if not path.exists():
        return None
    try:
        require_regular(path)
        if path.stat().st_size > MAX_BYTES:
            raise ValueError("it is too large")
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise GateError(
            "VIDC-BUNDLE-MALFORMED",
            f"{path} does not describe {what}: {str(error)[:200]}",
            "copy it again from where it was built, or delete it to see the engine alone",
        ) from error
    return read(document, kind, path.name)
