"""The command line: `main` holds the contract for scripts, each subcommand is a module."""

from vidc.compiler.cli.main import main

__all__ = ["main"]
