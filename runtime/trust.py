"""Signatures of bundles: Ed25519 over every field of the manifest except ``signature``.

The manifest lists the digest of every file, so its signature covers the whole folder.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.plugins.installation import install_extra
from vidc.runtime.manifest import Manifest, Seal

try:
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.hazmat.primitives.serialization import (
        load_pem_private_key,
        load_pem_public_key,
    )
except ImportError as error:
    raise UnavailableError(
        "VIDC-ENV-CRYPTOGRAPHY",
        f"signatures need the package cryptography: {error}",
        install_extra("sign"),
    ) from error

_CONTEXT = b"vidc bundle manifest\n"
"""Prefix of the signed bytes: a signature made for another kind of document is not valid here."""
_MAX_KEY_BYTES = 2**16


def private_key(file: Path) -> Ed25519PrivateKey:
    """Reads a private key in PEM, without a password.

    Raises:
        UsageError: ``VIDC-TRUST-KEY``.
    """
    key = _read(file, lambda data: load_pem_private_key(data, password=None))
    if not isinstance(key, Ed25519PrivateKey):
        raise _bad_key(file, "it is not an Ed25519 private key")
    return key


def seal(manifest: Manifest, key: Ed25519PrivateKey) -> Seal:
    """Returns the signature of a manifest."""
    value = key.sign(_CONTEXT + manifest.signed)
    return Seal(key.public_key().public_bytes_raw().hex(), value.hex())


def require_signature(manifest: Manifest, trust: Path | str | Iterable[Path | str]) -> None:
    """Refuses a manifest that none of the trusted keys signed.

    Args:
        manifest: the bundle's manifest.
        trust: files of the trusted public keys, in PEM.

    Raises:
        GateError: ``VIDC-TRUST-UNSIGNED``; ``VIDC-TRUST-SIGNER``, another key signed it, or the
            signature does not match the manifest.
        UsageError: ``VIDC-TRUST-KEY``.
    """
    files = [trust] if isinstance(trust, Path | str) else trust
    keys = [_public_key(Path(file)) for file in files]
    trusted = {key.public_bytes_raw().hex(): key for key in keys}
    found = manifest.signature
    if found is None:
        raise GateError(
            "VIDC-TRUST-UNSIGNED",
            f"{manifest.name} is not signed, and a trusted signature is required",
            "ask its maker for a signed bundle, or sign your own: vidc sign BUNDLE --key KEY",
        )
    if found.key not in trusted:
        raise _refusal(manifest, f"key {found.key} signed it, which is not trusted")
    try:
        trusted[found.key].verify(bytes.fromhex(found.value), _CONTEXT + manifest.signed)
    except InvalidSignature:
        raise _refusal(manifest, "its signature does not match its manifest") from None


def _public_key(file: Path) -> Ed25519PublicKey:
    key = _read(file, load_pem_public_key)
    if not isinstance(key, Ed25519PublicKey):
        raise _bad_key(file, "it is not an Ed25519 public key")
    return key


def _read(file: Path, parse: Callable[[bytes], Any]) -> Any:
    try:
        with file.open("rb") as stream:
            return parse(stream.read(_MAX_KEY_BYTES))
    except OSError as error:
        raise _bad_key(file, str(error.strerror)) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise _bad_key(file, str(error)[:200]) from error


def _bad_key(file: Path, why: str) -> UsageError:
    return UsageError(
        "VIDC-TRUST-KEY",
        f"{file} cannot be used as a key: {why}",
        "give an Ed25519 key in PEM without a password; `vidc explain VIDC-TRUST-KEY` makes one",
    )


def _refusal(manifest: Manifest, why: str) -> GateError:
    return GateError(
        "VIDC-TRUST-SIGNER",
        f"{manifest.name}: {why}",
        "do not load it unless you know who made it, and trust a key only if you know whose it is",
    )
