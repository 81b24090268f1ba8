"""The command line: `main` documents the exit statuses, each subcommand is a module."""

import sys

try:
    from vidc.compiler.cli.main import main
except KeyboardInterrupt:
    # `main` reports an interrupt, once it is imported.
    sys.stderr.write("interrupted\n")
    sys.exit(130)

__all__ = ["main"]
