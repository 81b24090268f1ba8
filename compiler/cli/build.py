"""`vidc build`: from a checkpoint to a validated bundle."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.cli.progress import stage_progress
from vidc.compiler.cli.settings import Flags, settings_options
from vidc.compiler.cli.sources import Given, sources_options
from vidc.compiler.settings.environment import cache_root
from vidc.compiler.settings.resolve import Settings
from vidc.exporters.components import weights_groups


@click.command()
@settings_options
@sources_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="The bundle's folder.  [default: out/PRESET-GPU-PRECISION]",
)
@click.option("--plan", "plan_only", is_flag=True, help="Say what would be done, and why.")
@json_option
def command(
    flags: Flags,
    given: Given,
    output: Path | None,
    plan_only: bool,
    as_json: bool,
) -> None:
    """Build a validated bundle from a checkpoint.

    PRESET is a name or a path to a TOML file; longlive-1.3b by default.
    """
    settings = flags.resolve()
    model, sources = given.resolve(settings.model)
    settings = replace(settings, model=model)
    output = output or Path("out") / _name(settings)
    cache = cache_root(os.environ)

    from vidc.compiler import build
    from vidc.compiler.graph import stage_count

    if plan_only:
        _print_plan(settings, build.plan(settings, sources, output, cache), as_json)
        return
    _announce(settings)
    with stage_progress(stage_count(settings)) as progress:
        built = build.build(settings, sources, output, cache, progress)
    if as_json:
        print_json(
            {
                "bundle": str(built.output),
                "hit": built.stages[-1].hit,
                "stages": [vars(stage) for stage in built.stages],
            }
        )
    else:
        print_text(str(built.output))


def _name(settings: Settings) -> str:
    groups = weights_groups(settings.model)
    precision = "-".join(sorted({settings.precision[group] for group in groups}))
    return f"{settings.preset}-{settings.target.name}-{precision}"


def _announce(settings: Settings) -> None:
    """Tells how long the validation takes, and at which level it is, where that is minutes."""
    from vidc.compiler import estimate

    scenario = estimate.scenario(settings)
    precisions = {group: settings.precision[group] for group in weights_groups(settings.model)}
    reference = estimate.about(estimate.reference_seconds(settings.model, scenario, precisions))
    if not reference:
        return
    what = "a rollout" if scenario.rollout else "every component, without a rollout,"
    click.echo(
        f"validating {what}: PyTorch's reference takes {reference} on this CPU where it is not "
        "in the cache; --set validate.level chooses the level",
        err=True,
    )


def _print_plan(settings: Settings, rows: list[Any], as_json: bool) -> None:
    values = settings.values()
    if as_json:
        print_json(
            {
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
