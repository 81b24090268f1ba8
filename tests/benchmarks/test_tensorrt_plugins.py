"""Recorded plans with plugins; such plans are built in ``tests/compiler``."""

import json
from pathlib import Path

from tensorrt_plugins import COMPONENTS, cases

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "tensorrt-rtx-plugins.json"
HEAD = "| component | recipe | plugins in the plan | for | plan | rings updated in place |"


def table(rows):
    """The documentation's table of these rows."""
    lines = [HEAD, "|---|---|---|---|---|---|"]
    for row in rows:
        plugins = ", ".join(f"`{name}`" for name in sorted(row["names_in_plan"]))
        targets = ", ".join(row["capabilities"])
        lines.append(
            f"| `{row['component']}` | {row['precision']}"
            + (f", `{row['recipe']}`" if row["recipe"] else "")
            + f" | {plugins} | {targets} | {row['plan_bytes'] / 1e6:.1f} MB | "
            f"{row['aliased']} of {row['rings']} |"
        )
    return "\n".join(lines)


def test_the_table_of_the_documentation_is_what_was_built():
    rows = json.loads(RESULTS.read_text())["rows"]
    assert [(r["component"], r["precision"], r["recipe"]) for r in rows] == [
        (case.component, case.precision, case.recipe) for case in cases(False, COMPONENTS)
    ]
    for row in rows:
        assert row["built"]
        assert row["names_in_plan"] == sorted(row["plugins"])
        assert row["rings"] == row["aliased"] > 0
        assert [f"sm{c.replace('.', '')}" for c in row["capabilities"]] == row["architectures"]
    assert table(rows) in (ROOT / "docs" / "evidence" / "tensorrt.md").read_text()
