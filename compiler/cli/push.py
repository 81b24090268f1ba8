"""`vidc push`: uploads a bundle to the Hugging Face Hub."""

from pathlib import Path

import click

from vidc.compiler.cli.group import Command, bundle_argument
from vidc.compiler.cli.output import json_option, print_json, print_text


@click.command(cls=Command)
@bundle_argument
@click.argument("repository", metavar="hf:ORG/NAME[@BRANCH]")
@click.option("--private", is_flag=True, help="Make the repository private, if it is made.")
@json_option
def command(bundle: Path, repository: str, private: bool, as_json: bool) -> None:
    """Upload a bundle to the Hugging Face Hub.

    Compares every file with the manifest first, and replaces what is in the repository. Prints the
    manifest's digest, which `vidc pull --digest` takes.
    """
    from vidc.compiler.build.exchange import push
    from vidc.compiler.store.hub import Reference

    document = push(bundle, Reference.parse(repository), private=private)
    if as_json:
        print_json({"repository": repository, "digest": document.digest})
    else:
        print_text(document.digest)
