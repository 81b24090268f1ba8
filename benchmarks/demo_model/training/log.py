"""A loss curve as JSON lines, and as a table short enough to read."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

Row = Mapping[str, float]


class Log:
    """Appends rows to a file; what an interrupted run wrote past its checkpoint is cut off.

    Args:
        path: of the file, created where there is none.
        step: the first step that is yet to be logged.
    """

    def __init__(self, path: Path, step: int) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read(path) if row["step"] < step] if path.exists() else []
        path.write_text("".join(json.dumps(row) + "\n" for row in kept))

    def write(self, row: Row) -> None:
        """Adds a row; it has a ``step``."""
        with self._path.open("a") as file:
            file.write(json.dumps(dict(row)) + "\n")


def read(path: Path) -> list[dict[str, float]]:
    """The rows of a log; a last line that was not written to its end is left out."""
    rows = []
    for line in path.read_text().splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def table(rows: Sequence[Row], most: int = 10) -> str:
    """Rows as columns of numbers, at most ``most`` of them, the first and the last included."""
    if not rows:
        return "nothing was logged"
    count = min(most, len(rows))
    chosen = [rows[round(i * (len(rows) - 1) / max(1, count - 1))] for i in range(count)]
    names = list(chosen[-1])
    cells = [names] + [[_number(row.get(name)) for name in names] for row in chosen]
    widths = [max(len(row[i]) for row in cells) for i in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.4g}"
