"""Kind of thing at a path, by its name alone."""

from enum import StrEnum
from pathlib import Path

from vidc.plugins.errors import UsageError
from vidc.plugins.untrusted_files import require_regular


class Subject(StrEnum):
    """Kinds of things that can be inspected and compared."""

    BUNDLE = "bundle"
    GRAPH = "onnx"
    PACKAGE = "pt2"
    PLAN = "plan"


def subject_of(path: Path) -> Subject:
    """Returns the kind of a path: a folder is a bundle, a file goes by its suffix.

    Raises:
        UsageError: ``VIDC-INSPECT-PATH``, nothing is there or nothing that vidc knows.
    """
    known = "a bundle's folder, an .onnx graph, a .pt2 package or a .plan"
    if path.is_dir():
        return Subject.BUNDLE
    try:
        require_regular(path)
    except OSError as error:
        raise UsageError(
            "VIDC-INSPECT-PATH", f"{path} cannot be read: {error.strerror}", f"give {known}"
        ) from error
    suffix = path.suffix.lower().removeprefix(".")
    if suffix not in (Subject.GRAPH, Subject.PACKAGE, Subject.PLAN):
        raise UsageError("VIDC-INSPECT-PATH", f"vidc cannot inspect {path}", f"give {known}")
    return Subject(suffix)
