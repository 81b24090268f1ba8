"""`vidc sign`: signs a bundle."""

from pathlib import Path

import click

from vidc.compiler.cli.group import PATH, Command, bundle_argument
from vidc.compiler.cli.output import json_option, print_json, print_text


@click.command(cls=Command)
@bundle_argument
@click.option(
    "--key",
    type=PATH,
    required=True,
    help="Ed25519 private key, in PEM without a password.",
)
@json_option
def command(bundle: Path, key: Path, as_json: bool) -> None:
    """Sign a bundle.

    Compares every file with the manifest first. Prints the manifest's digest, which stays the same.
    """
    from vidc.compiler.build.sign import sign_bundle

    document = sign_bundle(bundle, key)
    assert document.signature is not None
    if as_json:
        print_json({"digest": document.digest, "key": document.signature.key})
    else:
        print_text(document.digest)
