"""`vidc explain`: explains an error code."""

from importlib.resources import files

import click

from vidc.compiler.cli.group import Command
from vidc.compiler.cli.names import complete
from vidc.compiler.cli.output import json_option, print_json, print_text
from vidc.compiler.config.toml import read_toml
from vidc.plugins.errors import UsageError, nearest

_PREFIX = "VIDC-"


def catalog() -> dict[str, dict[str, str]]:
    """Returns ``title`` and ``explain`` of every error code."""
    return read_toml(files("vidc.configs") / "errors.toml")


@click.command(cls=Command)
@click.argument(
    "code", shell_complete=complete(lambda: {c: e["title"] for c, e in catalog().items()})
)
@json_option
def command(code: str, as_json: bool) -> None:
    """Explain an error code, such as gpu-memory or VIDC-GPU-MEMORY."""
    codes = catalog()
    name = code.upper()
    if not name.startswith(_PREFIX):
        name = _PREFIX + name
    entry = codes.get(name)
    if entry is None:
        raise UsageError("VIDC-CLI-CODE", f"no error code {code!r}", nearest(name, codes))
    if as_json:
        print_json({"code": name, **entry})
    else:
        print_text(f"{name}: {entry['title']}\n\n{entry['explain'].strip()}")
