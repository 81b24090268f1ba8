"""Commands that refuse an option given twice, unless it takes a list."""

import click

from vidc.plugins.errors import UsageError


class Command(click.Command):
    """Command whose options have one value each, or are lists."""

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
    """Returns False for lists, and for -v and --help."""
    return not option.multiple and not option.is_eager


class Group(click.Group):
    """Group of such commands."""

    command_class = Command
