"""`vidc pull`: downloads a bundle from the Hugging Face Hub."""

from pathlib import Path

import click

from vidc.compiler.cli.group import PATH, Command, trust_option
from vidc.compiler.cli.output import json_option, print_json, print_text


@click.command(cls=Command)
@click.argument("repository", metavar="hf:ORG/NAME[@REVISION]")
@click.option(
    "-o",
    "--output",
    type=PATH,
    help="Folder of the bundle.  [default: out/NAME]",
)
@click.option("--digest", help="Digest of the manifest: refuse any other bundle.")
@trust_option
@json_option
def command(
    repository: str, output: Path | None, digest: str | None, trust: tuple[Path, ...], as_json: bool
) -> None:
    """Download a bundle from the Hugging Face Hub.

    Checks digest and signature of the manifest before anything else is downloaded, then every file.
    """
    from vidc.compiler.build.exchange import pull
    from vidc.compiler.store.hub import Reference

    reference = Reference.parse(repository)
    output = output or Path("out") / reference.repository.partition("/")[-1]
    document = pull(reference, output, trust=trust, digest=digest)
    if not trust and digest is None:
        click.echo(
            "neither --trust nor --digest is given: the files are whole, and nothing says who "
            "made them",
            err=True,
        )
    if as_json:
        print_json({"bundle": str(output), "digest": document.digest})
    else:
        print_text(str(output))
