"""The `vidc` command, which imports subcommands lazily, and options that several of them share."""

import importlib
import pkgutil
from contextlib import ExitStack, redirect_stderr
from dataclasses import dataclass, field, fields
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from vidc.plugins.errors import UsageError, nearest

Options = TypeVar("Options")

PATH = click.Path(path_type=Path)
bundle_argument = click.argument("bundle", type=PATH)
"""Adds the folder of a bundle, passed on as ``bundle``."""
trust_option = click.option(
    "--trust",
    type=PATH,
    multiple=True,
    help="Ed25519 public key in PEM: refuse a bundle that no such key signed.",
)
"""Adds ``--trust``, passed on as a tuple of files."""

HELP = {
    "bench": "Measure a bundle.",
    "build": "Build a validated bundle from a checkpoint.",
    "cache": "List, verify, prune or empty the build cache.",
    "calibrate": "Record the ranges that quantization needs.",
    "completion": "Print the script that completes vidc in a shell.",
    "diff": "Compare two bundles, graphs or engines.",
    "doctor": "Check this machine: what works, what is missing, what to do.",
    "explain": "Explain an error code, such as gpu-memory or VIDC-GPU-MEMORY.",
    "export": "Export a model's components to ONNX or ExportedProgram.",
    "inspect": "Show what a bundle, a graph or an engine holds.",
    "presets": "List the presets, or show one.",
    "pull": "Download a bundle from the Hugging Face Hub.",
    "push": "Upload a bundle to the Hugging Face Hub.",
    "run": "Generate a video with a bundle.",
    "sign": "Sign a bundle.",
    "validate": "Check that a bundle computes the model.",
}
"""Help line of each subcommand, so that `vidc --help` imports none."""


class Command(click.Command):
    """Command that refuses an option given twice, unless the option takes a list."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Refuses an option given twice; click would silently take the last value."""
        if not ctx.resilient_parsing:
            _, _, given = self.make_parser(ctx).parse_args(list(args))
            for option in given:
                if isinstance(option, click.Option) and _single(option) and given.count(option) > 1:
                    raise UsageError(
                        "VIDC-CLI-USAGE",
                        f"{option.opts[-1]} is given {given.count(option)} times",
                        "give it once",
                    )
        return super().parse_args(ctx, args)


def _single(option: click.Option) -> bool:
    """Returns False for lists, and for -v, -q and --help."""
    return not option.multiple and not option.is_eager


class Group(click.Group):
    """Group whose subcommands are of class ``Command``."""

    command_class = Command


def taken(kind: type[Options], given: dict[str, Any]) -> Options:
    """Removes a dataclass's fields from ``given`` and returns an object with their values."""
    return kind(**{field.name: given.pop(field.name) for field in fields(kind)})  # type: ignore[arg-type]


@dataclass
class Invocation:
    """Options of the whole command line.

    Attributes:
        verbose: True if errors come with a traceback and tables with every row.
        streams: restores a silenced stderr on exit.
    """

    verbose: bool = False
    streams: ExitStack = field(default_factory=ExitStack)

    def silence(self) -> None:
        """Drops what is written to stderr from here on."""
        self.streams.enter_context(redirect_stderr(StringIO()))


def command_names() -> list[str]:
    """Returns the subcommands: the modules of this package that have a line in ``HELP``."""
    modules = {module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])}
    return sorted(modules & HELP.keys())


def _set_verbose(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).verbose = True


def _set_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        context.ensure_object(Invocation).silence()


VERBOSE = click.Option(
    ["-v", "--verbose"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_set_verbose,
    help="Show a traceback with an error, and all rows of a long result.",
)
QUIET = click.Option(
    ["-q", "--quiet"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_set_quiet,
    help="Print results and errors alone, no progress.",
)


def _accept_common(command: click.Command) -> None:
    """Accepts ``-v`` and ``-q`` after a subcommand too."""
    command.params += [option for option in (VERBOSE, QUIET) if option not in command.params]
    if isinstance(command, click.Group):
        for child in command.commands.values():
            _accept_common(child)


class LazyGroup(click.Group):
    """Group whose subcommands are modules, each with an attribute ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all subcommands."""
        return command_names()

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports a subcommand."""
        if cmd_name not in command_names():
            return None
        command: click.Command = importlib.import_module(f"vidc.compiler.cli.{cmd_name}").command
        command.name = cmd_name
        _accept_common(command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Refuses an unknown subcommand with the nearest one."""
        if args[0] not in command_names() and not ctx.resilient_parsing:
            raise UsageError(
                "VIDC-CLI-USAGE", f"no command {args[0]!r}", nearest(args[0], command_names())
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists the subcommands from ``HELP``."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, HELP[name]) for name in command_names()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes the subcommands from ``HELP``, and options as any command does."""
        names = [name for name in command_names() if name.startswith(incomplete)]
        return [
            *(CompletionItem(name, help=HELP[name]) for name in names),
            *click.Command.shell_complete(self, ctx, incomplete),
        ]


@click.group(
    cls=LazyGroup,
    params=[VERBOSE, QUIET],
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(package_name="vidc", message="%(prog)s %(version)s")
@click.pass_context
def root(context: click.Context) -> None:
    """Compile KV-cached autoregressive video diffusion ahead of time, and replay it."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
