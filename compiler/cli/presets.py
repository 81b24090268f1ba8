"""`vidc presets`: lists and shows presets."""

import click

from vidc.compiler.cli import names
from vidc.compiler.cli.group import Group
from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.config.presets import load_preset, preset_document, preset_names
from vidc.compiler.config.toml import to_toml


@click.group(cls=Group, no_args_is_help=False)
def command() -> None:
    """List the presets, or show one."""


@command.command("list")
@json_option
def list_presets(as_json: bool) -> None:
    """List the presets with their descriptions."""
    presets = [load_preset(name) for name in preset_names()]
    if as_json:
        rows = [{"name": p.name, "family": p.family, "description": p.description} for p in presets]
        print_json({"presets": rows})
    else:
        print_text(columns([(p.name, p.description) for p in presets]))


@command.command("show")
@click.argument("preset", shell_complete=names.PRESET)
@json_option
def show(preset: str, as_json: bool) -> None:
    """Show a preset, by name or from a TOML file, with everything it inherits."""
    loaded = load_preset(preset)
    document = preset_document(loaded)
    if as_json:
        print_json({"name": loaded.name, **document})
    else:
        print_text(to_toml(document))
