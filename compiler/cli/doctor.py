"""`vidc doctor`: checks this machine."""

from dataclasses import asdict

import click

from vidc.compiler.cli.command import Command
from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.doctor.examine import examine
from vidc.compiler.doctor.probes import Status

ENVIRONMENT = 3


@click.command(cls=Command)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """Check this machine: what works, what is missing, what to do.

    Exits 3 if something is broken that a plain build for the CPU needs.
    """
    findings = examine()
    good = all(finding.status is not Status.BROKEN for finding in findings)
    if as_json:
        print_json({"good": good, "findings": [asdict(finding) for finding in findings]})
    else:
        print_text(columns([(f.status, f.name, f.detail) for f in findings]))
        hints = [f"{f.name}: {f.hint}" for f in findings if f.hint]
        if hints:
            print_text("\n" + "\n".join(hints))
    context.exit(0 if good else ENVIRONMENT)
