"""Build plan on stdout: settings with their origins, and the state of each stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from vidc.compiler.cli.output import columns, print_json, print_text
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.plan import PlanRow


def print_plan(
    settings: Settings, rows: Sequence[PlanRow], as_json: bool, more: Mapping[str, Any]
) -> None:
    """Prints a plan; ``more`` goes into the JSON document alone."""
    values = settings.values()
    if as_json:
        print_json(
            {
                **more,
                "settings": {
                    name: {"value": value, "origin": settings.origins.get(name, "default")}
                    for name, value in values.items()
                },
                "stages": [
                    {
                        "stage": row.stage,
                        "status": row.status.value,
                        "key": row.key,
                        "reasons": list(row.reasons),
                    }
                    for row in rows
                ],
            }
        )
        return
    print_text(
        columns(
            [
                (name, str(value), settings.origins.get(name, "default"))
                for name, value in values.items()
            ]
        )
    )
    print_text("")
    print_text(columns([(row.stage, row.status.value, "; ".join(row.reasons)) for row in rows]))
