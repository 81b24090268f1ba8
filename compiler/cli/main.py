"""Entry point: runs the command line and reports errors with a message and exit status."""

import atexit
import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence

import click

from vidc.compiler.cli.group import Invocation, root
from vidc.compiler.cli.interrupts import Interrupts
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
        with Interrupts() as interrupts:
            status = _status(sys.argv[1:] if arguments is None else arguments, interrupts)
    finally:
        # While the interpreter shuts down, an interrupt would only print a traceback.
        atexit.register(signal.signal, signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


def _status(arguments: Sequence[str], interrupts: Interrupts) -> int:
    try:
        return _run(arguments, interrupts)
    except BaseException as error:
        # A library may turn the interrupt into an error of its own.
        if not interrupts.received and not isinstance(error, click.Abort | KeyboardInterrupt):
            raise
        click.echo("interrupted", err=True)
        return INTERRUPTED


def _run(arguments: Sequence[str], interrupts: Interrupts) -> int:
    invocation = Invocation()
    try:
        # With standalone_mode=False, click returns the status given to `Context.exit`, or else the
        # command's result, which is no status.
        with invocation.streams:
            status = root.main(
                list(arguments), prog_name="vidc", standalone_mode=False, obj=invocation
            )
        return status if isinstance(status, int) else 0
    except Exception as error:
        if interrupts.received or isinstance(error, click.Abort):
            raise
        return _report(_shown(error), error, invocation)


def _report(shown: VidcError, cause: Exception, invocation: Invocation) -> int:
    if invocation.verbose:
        traceback.print_exception(cause)
    code = f"[{shown.code}]"
    text = str(shown).replace(code, click.style(code, fg="red"), 1)
    # click leaves the color out where stderr is no terminal.
    click.echo(text, err=True, color=False if os.environ.get("NO_COLOR") else None)
    return shown.exit_code


def _shown(error: Exception) -> VidcError:
    if isinstance(error, VidcError):
        return error
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        # No earlier check limits the length of a path.
        name = f"{error.filename!s:.80}"
        return UsageError("VIDC-CLI-USAGE", f"{name}… is too long for a path", "check the path")
    return _coded(error) if isinstance(error, click.ClickException) else _internal(error)


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
