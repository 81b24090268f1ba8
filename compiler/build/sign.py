"""Signing of a published bundle."""

from dataclasses import replace
from pathlib import Path

from vidc.compiler.store.atomic import write_bytes
from vidc.runtime.files import Files
from vidc.runtime.integrity import verify
from vidc.runtime.manifest import MANIFEST_NAME, Manifest, canonical, read_manifest
from vidc.runtime.record import compare_record
from vidc.runtime.trust import private_key, seal


def sign_bundle(bundle: Path, key: Path) -> Manifest:
    """Signs a bundle in place after checking every file, and returns its manifest.

    Raises:
        UsageError: ``VIDC-TRUST-KEY``.
        VidcError: as raised by ``read_manifest``, ``verify`` and ``compare_record``.
    """
    signer = private_key(key)
    document = read_manifest(bundle)
    verify(bundle, document, "full")
    with Files(bundle, document.files) as files:
        compare_record(files, document)
    signed = replace(document, signature=seal(document, signer))
    text = canonical(signed.to_json())
    try:
        # In the bundle, the draft of a killed process would be a file that no manifest lists.
        write_bytes(bundle / MANIFEST_NAME, text, beside=bundle.resolve())
    except OSError:  # The folder above is of another file system, or cannot be written.
        write_bytes(bundle / MANIFEST_NAME, text)
    return signed
