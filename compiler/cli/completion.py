"""`vidc completion`: shell completion."""

import click
from click.shell_completion import BashComplete, FishComplete, ZshComplete

from vidc.compiler.cli.group import Command, root
from vidc.compiler.cli.output import print_text

SHELLS = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(list(SHELLS)))
def command(shell: str) -> None:
    """Print the script that completes vidc in a shell.

    For bash: eval "$(vidc completion bash)".
    """
    print_text(SHELLS[shell](root, {}, "vidc", "_VIDC_COMPLETE").source())
