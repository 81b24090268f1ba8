"""Bundles on the Hugging Face Hub: uploads whole ones, downloads and checks them."""

import shutil
from pathlib import Path

from vidc.compiler.build.package import BUNDLE
from vidc.compiler.store.hub import Reference, hub_errors, huggingface_hub
from vidc.compiler.store.publish import replacing
from vidc.plugins.errors import GateError, UsageError
from vidc.runtime.files import Files
from vidc.runtime.integrity import verify
from vidc.runtime.manifest import MANIFEST_NAME, Manifest, read_manifest
from vidc.runtime.record import compare_record


def push(bundle: Path, reference: Reference, *, private: bool) -> Manifest:
    """Uploads a bundle as one commit, after checking every file, and returns its manifest.

    Files of the repository that are not the bundle's are removed: a bundle is a whole folder.

    Args:
        bundle: the folder.
        reference: the repository, made if it does not exist, and a branch.
        private: True to make a new repository private.

    Raises:
        UsageError: ``VIDC-HUB-REFERENCE``, ``VIDC-HUB-MISSING``.
        UnavailableError: ``VIDC-ENV-HUB``, ``VIDC-HUB-UNREACHABLE``.
        VidcError: as raised by ``read_manifest``, ``verify`` and ``compare_record``.
    """
    _require_repository(reference)
    document = read_manifest(bundle)
    _check(bundle, document)
    api = huggingface_hub().HfApi()
    with hub_errors(reference):
        api.create_repo(reference.repository, private=private, exist_ok=True)
        if reference.revision is not None:
            api.create_branch(reference.repository, branch=reference.revision, exist_ok=True)
        api.upload_folder(
            repo_id=reference.repository,
            folder_path=bundle,
            revision=reference.revision,
            commit_message=f"Bundle {document.name}, digest {document.digest}",
            delete_patterns="*",
        )
    return document


def pull(
    reference: Reference, output: Path, *, trust: tuple[Path, ...], digest: str | None
) -> Manifest:
    """Downloads a bundle, checks it, and puts it in place whole or not at all.

    The manifest comes first: a bundle with another digest, or without a trusted signature, is
    refused before anything else is downloaded.

    Args:
        reference: the repository and a branch, tag or commit.
        output: a new or empty folder, or an older bundle, which is replaced.
        trust: files of trusted public keys in PEM; empty requires no signature.
        digest: expected digest of the manifest; None accepts any.

    Raises:
        GateError: ``VIDC-TRUST-DIGEST``, ``VIDC-TRUST-SIGNER``, ``VIDC-TRUST-UNSIGNED``.
        UsageError: ``VIDC-BUILD-OUTPUT``; as ``push``.
        UnavailableError: as ``push``.
        VidcError: as raised by ``read_manifest``, ``verify`` and ``compare_record``.
    """
    _require_repository(reference)
    BUNDLE.refuse_occupied(output)
    hub = huggingface_hub()
    with replacing(output.absolute(), "pull") as staging:
        with hub_errors(reference):
            # Both downloads are of one commit.
            commit = hub.HfApi().repo_info(reference.repository, revision=reference.revision).sha
        _download(reference, commit, staging, [MANIFEST_NAME])
        document = read_manifest(staging)
        if digest is not None and document.digest != digest.strip().lower():
            raise GateError(
                "VIDC-TRUST-DIGEST",
                f"{reference} has digest {document.digest}, expected {digest[:80]}",
                "it is another bundle, or it was changed: ask its maker for the digest",
            )
        if trust:
            from vidc.runtime.trust import require_signature

            require_signature(document, trust)
        _download(reference, commit, staging, [*document.files])
        _check(staging, document)
    return document


def _download(reference: Reference, commit: str, folder: Path, files: list[str]) -> None:
    with hub_errors(reference):
        huggingface_hub().snapshot_download(
            reference.repository, revision=commit, local_dir=folder, allow_patterns=files
        )
    shutil.rmtree(folder / ".cache")  # The library's notes on what it downloaded.


def _check(folder: Path, document: Manifest) -> None:
    verify(folder, document, "full")
    with Files(folder, document.files) as files:
        compare_record(files, document)


def _require_repository(reference: Reference) -> None:
    if reference.file is not None:
        raise UsageError(
            "VIDC-HUB-REFERENCE",
            f"{reference} names a file, and a bundle is a whole repository",
            f"leave :{reference.file} out",
        )
