"""`vidc doctor`: checks this machine."""

from dataclasses import asdict
from pathlib import Path

import click

from vidc.compiler.cli.group import PATH, Command
from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.doctor.probes import Status, examine, verdict

ENVIRONMENT = 3
"""Exit status if something is not available on this machine."""


@click.command(cls=Command)
@click.argument("bundle", type=PATH, required=False)
@json_option
@click.pass_context
def command(context: click.Context, bundle: Path | None, as_json: bool) -> None:
    """Check this machine: what works, what is missing, what to do.

    With a BUNDLE, loads it in a process of its own as well, which damaged native code may end.
    Exits 3 if the bundle does not load, or something is broken that a plain CPU build needs.
    """
    findings = examine()
    if bundle is not None:
        from vidc.compiler.doctor.trial import try_bundle

        findings.append(try_bundle(bundle))
    good = all(finding.status is not Status.BROKEN for finding in findings)
    if as_json:
        print_json({"good": good, "findings": [asdict(finding) for finding in findings]})
    else:
        print_text(columns([(f.status, f.name, f.detail) for f in findings]))
        hints: dict[str, list[str]] = {}
        for finding in findings:
            if finding.hint:
                hints.setdefault(finding.hint, []).append(finding.name)
        if hints:
            lines = [f"{', '.join(names)}:\n  {hint}" for hint, names in hints.items()]
            print_text("\n" + "\n".join(lines))
        print_text(f"\n{verdict(findings)}")
    context.exit(0 if good else ENVIRONMENT)
