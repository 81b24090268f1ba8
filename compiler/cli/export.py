"""`vidc export`: exports components as ONNX graphs and ExportedPrograms."""

import os
from dataclasses import replace
from pathlib import Path

import click

from vidc.compiler.cli.group import PATH, Command
from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.cli.progress import stage_progress
from vidc.compiler.cli.settings import Flags, settings_options
from vidc.compiler.cli.sources import SourceOptions, sources_options
from vidc.compiler.config.environment import cache_root


@click.command(cls=Command)
@settings_options
@sources_options
@click.option(
    "--component", "components", multiple=True, metavar="NAME",
    help="Component to export; may be repeated.  [default: all]",
)  # fmt: skip
@click.option(
    "-o", "--output", type=PATH, required=True,
    help="New or empty folder.",
)  # fmt: skip
@json_option
def command(
    flags: Flags,
    weights: SourceOptions,
    components: tuple[str, ...],
    output: Path,
    as_json: bool,
) -> None:
    """Export a model's components to ONNX or ExportedProgram.

    Writes COMPONENT.onnx and COMPONENT.pt2, without weights. The ONNX graphs refer to
    `weights/*.safetensors` beside them, which need a checkpoint or a seed.
    """
    settings = flags.resolve(engines=False)
    sources = None
    if weights.any:
        model, sources = weights.resolve(settings.model)
        settings = replace(settings, model=model)

    from vidc.compiler.build.export_command import export, export_stages, refuse_occupied

    refuse_occupied(output)
    names = tuple(dict.fromkeys(components)) or tuple(settings.model.components)
    with stage_progress(len(export_stages(settings, sources, names))) as progress:
        exported = export(settings, sources, names, output, cache_root(os.environ), progress)
    if as_json:
        print_json(
            {
                "output": str(exported.output),
                "components": [vars(item) for item in exported.components],
                "missing": list(exported.missing),
            }
        )
        return
    rows = [(c.component, c.precision, c.onnx, c.program, c.weights) for c in exported.components]
    print_text(columns([("component", "precision", "ONNX", "program", "weights"), *rows]))
    print_text(f"\nin {exported.output}")
    for path in exported.missing:
        print_text(
            f"{path} is not there; before an ONNX graph is loaded, put there that file of a "
            "bundle of the same sizes and precision, or export with --checkpoint"
        )
