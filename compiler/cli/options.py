"""Options and arguments of several commands."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

PATH = click.Path(path_type=Path)

Command = TypeVar("Command", bound=Callable[..., Any])


def bundle_argument(command: Command) -> Command:
    """Adds the folder of a bundle, passed on as ``bundle``."""
    return click.argument("bundle", type=PATH)(command)


def trust_option(command: Command) -> Command:
    """Adds ``--trust``, passed on as a tuple of files."""
    return click.option(
        "--trust",
        type=PATH,
        multiple=True,
        help="Ed25519 public key in PEM: refuse a bundle that no such key signed.",
    )(command)
