"""Signatures and digests of bundles."""

import json
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest
from json_leaves import changed, leaves
from signing_keys import key_pair

from vidc.plugins.errors import GateError, UsageError, VidcError
from vidc.plugins.installation import install_extra
from vidc.runtime.manifest import Manifest, read_manifest, write_manifest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vidc.runtime.trust import private_key, require_signature, seal


@pytest.fixture
def keys(tmp_path):
    return key_pair(tmp_path, "maker")


def signed(manifest: Manifest, private: Path) -> Manifest:
    return replace(manifest, signature=seal(manifest, private_key(private)))


def test_a_signed_manifest_is_trusted_and_keeps_its_digest(manifest, tmp_path, keys):
    private, public = keys
    other = key_pair(tmp_path, "other")[1]
    document = signed(manifest, private)
    assert document.digest == manifest.digest
    write_manifest(document, tmp_path)
    read = read_manifest(tmp_path)
    assert read == document
    require_signature(read, public)
    require_signature(read, [other, str(public)])


def test_every_field_is_signed(manifest, keys):
    private, public = keys
    document = signed(manifest, private)
    for field in fields(Manifest):
        if field.name == "signature":
            continue
        other = replace(document)
        object.__setattr__(other, field.name, "another")
        with pytest.raises(GateError, match="VIDC-TRUST-SIGNER"):
            require_signature(other, public)
        assert other.digest != document.digest


def test_a_changed_leaf_of_a_signed_manifest_is_refused(manifest, tmp_path, keys):
    private, public = keys
    write_manifest(signed(manifest, private), tmp_path)
    file = tmp_path / "manifest.json"
    document = json.loads(file.read_text())
    for path in leaves(document):
        file.write_text(json.dumps(changed(document, path)))
        with pytest.raises(VidcError):
            require_signature(read_manifest(tmp_path), public)


def test_refuses_a_manifest_that_is_not_signed_or_by_another_key(manifest, tmp_path, keys):
    private, public = keys
    with pytest.raises(GateError, match="VIDC-TRUST-UNSIGNED"):
        require_signature(manifest, public)
    other_private, other = key_pair(tmp_path, "other")
    with pytest.raises(GateError, match="VIDC-TRUST-SIGNER"):
        require_signature(signed(manifest, private), other)
    with pytest.raises(GateError, match="VIDC-TRUST-SIGNER"):
        require_signature(signed(manifest, private), [])
    # A signature under the name of the trusted key.
    forged = seal(manifest, private_key(other_private))
    trusted = signed(manifest, private).signature
    forged = replace(forged, key=trusted.key)
    with pytest.raises(GateError, match="VIDC-TRUST-SIGNER"):
        require_signature(replace(manifest, signature=forged), public)


def test_a_key_that_cannot_be_used_has_a_code(manifest, tmp_path, keys):
    private, public = keys
    document = signed(manifest, private)
    (tmp_path / "text.pem").write_text("no key")
    foreign = key_pair(tmp_path, "foreign", kind=X25519PrivateKey)
    locked = key_pair(tmp_path, "locked", password=b"secret")
    for file in (tmp_path / "none.pem", tmp_path, tmp_path / "text.pem", foreign[1], private):
        with pytest.raises(UsageError, match="VIDC-TRUST-KEY"):
            require_signature(document, file)
    for file in (tmp_path / "none.pem", tmp_path / "text.pem", foreign[0], locked[0], public):
        with pytest.raises(UsageError, match="VIDC-TRUST-KEY"):
            private_key(file)


def test_without_cryptography_signatures_are_unavailable_and_say_so():
    code = """
import sys
sys.modules["cryptography"] = None
import vidc.runtime
from vidc.plugins.errors import UnavailableError
try:
    import vidc.runtime.trust
except UnavailableError as error:
    print(error.code, error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"VIDC-ENV-CRYPTOGRAPHY {install_extra('sign')}\n"


def test_the_documentation_lists_every_field_of_the_manifest():
    text = (Path(__file__).parents[2] / "SECURITY.md").read_text()
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == {field.name for field in fields(Manifest)} - {"signature"}
