"""Entry point: runs the command line and reports errors with a message and exit status."""

import atexit
import signal
import sys
import traceback
from collections.abc import Sequence

import click

from vidc.compiler.cli.group import Invocation, root
from vidc.plugins.errors import UsageError, VidcError

INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs ``vidc`` and exits.

    Status 0: success; 1: a gate failed; 2: wrong usage or configuration; 3: not available on this
    machine; 4: a build step failed, or vidc has a bug; 130: interrupted.

    Args:
        arguments: the command line after the program's name, by default this process's own.
    """
    try:
        status = _status(sys.argv[1:] if arguments is None else arguments)
    finally:
        # While the interpreter shuts down, an interrupt would only print a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _status(arguments: Sequence[str]) -> int:
    invocation = Invocation()
    try:
        # Without standalone mode click returns what `Context.exit` was given, or the command's
        # own result, which carries no status.
        status = root.main(list(arguments), prog_name="vidc", standalone_mode=False, obj=invocation)
        return status if isinstance(status, int) else 0
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        return _report(_coded(error), error, invocation)
    except VidcError as error:
        return _report(error, error, invocation)
    except Exception as error:  # noqa: BLE001 - the last resort, which tells a bug from a mistake
        return _report(_internal(error), error, invocation)


def _report(shown: VidcError, cause: Exception, invocation: Invocation) -> int:
    if invocation.verbose:
        traceback.print_exception(cause)
    click.echo(str(shown), err=True)
    return shown.exit_code


def _coded(error: click.ClickException) -> VidcError:
    context = error.ctx if isinstance(error, click.UsageError) else None
    command = context.command_path if context else "vidc"
    return UsageError("VIDC-CLI-USAGE", error.format_message(), f"{command} --help")


def _internal(error: Exception) -> VidcError:
    return VidcError(
        "VIDC-INTERNAL",
        f"vidc failed: {type(error).__name__}: {error}",
        "run it again with -v and report the traceback: this is a bug",
    )
