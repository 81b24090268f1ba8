"""The command line: what a script may rely on is in `main`, each subcommand is a module."""

from vidc.compiler.cli.main import main

__all__ = ["main"]
