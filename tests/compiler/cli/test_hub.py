"""Checkpoints and bundles on the Hugging Face Hub, against a local server."""

import json
import sys
from dataclasses import replace

import pytest
import torch
from entries import file_entries
from hub_server import Hub, serving
from safetensors.torch import save_file
from signing_keys import key_pair

constants = pytest.importorskip("huggingface_hub.constants", reason="needs vidc[hub]")

from vidc.compiler.build.sign import sign_bundle  # noqa: E402
from vidc.compiler.store.hub import Reference, fetch  # noqa: E402
from vidc.plugins.errors import UsageError  # noqa: E402
from vidc.plugins.installation import install_extra  # noqa: E402
from vidc.runtime.integrity import file_entry  # noqa: E402
from vidc.runtime.manifest import read_manifest, write_manifest  # noqa: E402
from vidc.runtime.record import RECORD_NAME, Record  # noqa: E402

NAME = "maker/bundle"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A server; the library asks it and keeps its cache and its token in a test folder."""
    served = Hub()
    with serving(served) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_token")
        resolve = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", resolve)
        yield served


@pytest.fixture
def bundle(make_bundle):
    """A bundle with the record of its validation."""
    folder = make_bundle()
    document = read_manifest(folder)
    files = {p: entry for p, entry in file_entries(folder).items() if p != "manifest.json"}
    document = replace(document, files=files)
    Record.of(document).write(folder)
    files[RECORD_NAME] = file_entry(folder / RECORD_NAME)
    write_manifest(replace(document, files=files), folder)
    return folder


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf:org/name", Reference("org/name")),
        ("hf:org/name@v1.0", Reference("org/name", "v1.0")),
        ("hf:org/name:a/b.pt", Reference("org/name", None, "a/b.pt")),
        ("hf:Org-1/na.me_2@refs/pr/3:x", Reference("Org-1/na.me_2", "refs/pr/3", "x")),
    ],
)
def test_a_reference_is_read_and_written_back(text, reference):
    assert Reference.parse(text) == reference
    assert str(reference) == text


@pytest.mark.parametrize(
    "text", ["hf:", "hf:name", "hf:a/b/c", "hf:a/b@", "hf:a/b:", "hf:a/b:../c", "http://a/b"]
)
def test_refuses_what_is_no_reference(text):
    with pytest.raises(UsageError, match="names no file of the hub") as refused:
        Reference.parse(text)
    assert refused.value.code == "VIDC-HUB-REFERENCE"


def test_a_file_is_fetched_once_with_its_config(hub, tmp_path):
    made = tmp_path / "made"
    (made / "part").mkdir(parents=True)
    save_file({"w": torch.ones(2)}, made / "part" / "model.safetensors")
    (made / "part" / "config.json").write_text("{}")
    (made / "large.bin").write_bytes(b"not asked for")
    hub.add("org/name", made)
    path = fetch(Reference("org/name", None, "part/model.safetensors"))
    assert path.read_bytes() == (made / "part" / "model.safetensors").read_bytes()
    assert (path.parent / "config.json").exists()
    assert not (path.parents[1] / "large.bin").exists()
    assert fetch(Reference("org/name", None, "part")) == path.parent
    assert fetch(Reference("org/name")).joinpath("large.bin").exists()
    fetched = [r for r in hub.requests if r == "GET /org/name/resolve/" + hub.commit(
        "org/name", "main") + "/part/model.safetensors"]  # fmt: skip
    assert len(fetched) == 1


def test_a_file_in_the_cache_needs_no_server(hub, tmp_path):
    made = tmp_path / "made"
    made.mkdir()
    (made / "x.bin").write_bytes(b"weights")
    hub.add("org/name", made)
    reference = Reference("org/name", None, "x.bin")
    path = fetch(reference)
    hub.repositories.clear()
    constants.ENDPOINT = "http://127.0.0.1:9"  # The fixture restores it.
    assert fetch(reference) == path


def test_build_takes_a_checkpoint_of_the_hub(hub, vidc, tmp_path, cache_folder):
    made = tmp_path / "made"
    made.mkdir()
    save_file({"w": torch.ones(2)}, made / "model.safetensors")
    hub.add("org/name", made)
    status, _, err = vidc(
        "build", "tiny", "--gpu", "cpu", "--checkpoint", "hf:org/name:model.safetensors",
        "--vae", "hf:org/name:model.safetensors", "--plan",
    )  # fmt: skip
    assert "fetching hf:org/name:model.safetensors" in err
    assert status == 0, err


@pytest.mark.parametrize(
    ("reference", "status", "code"),
    [
        ("hf:org/nothing:x.bin", 2, "VIDC-HUB-MISSING"),
        ("hf:org/name@none:x.bin", 2, "VIDC-HUB-MISSING"),
        ("hf:org/name:none.bin", 2, "VIDC-HUB-MISSING"),
        ("hf:name", 2, "VIDC-HUB-REFERENCE"),
    ],
)
def test_refuses_what_the_hub_lacks(hub, vidc, tmp_path, reference, status, code):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "x.bin").write_bytes(b"weights")
    hub.add("org/name", tmp_path / "made")
    found, out, err = vidc("build", "tiny", "--gpu", "cpu", "--checkpoint", reference)
    assert (found, out) == (status, "")
    assert f"[{code}]" in err


def test_says_how_to_install_what_is_missing(vidc, monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    status, out, err = vidc("pull", "hf:org/name")
    assert (status, out) == (3, "")
    assert "[VIDC-ENV-HUB]" in err
    assert install_extra("hub") in err


def test_says_that_the_hub_is_out_of_reach(vidc, tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    for arguments in (
        ("build", "tiny", "--gpu", "cpu", "--checkpoint", "hf:org/name:x.bin"),
        ("pull", "hf:org/name", "-o", str(tmp_path / "out")),
    ):
        status, out, err = vidc(*arguments)
        assert (status, out) == (3, "")
        assert "[VIDC-HUB-UNREACHABLE]" in err
    assert not (tmp_path / "out").exists()


def test_a_pushed_bundle_is_pulled_as_it_was(hub, vidc, bundle, tmp_path):
    private, public = key_pair(tmp_path, "maker")
    signed = sign_bundle(bundle, private)
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "stale.onnx").write_bytes(b"of an older bundle")
    hub.add(NAME, tmp_path / "older")
    status, out, err = vidc("push", str(bundle), f"hf:{NAME}", "--json")
    assert status == 0, err
    assert json.loads(out)["digest"] == signed.digest
    output = tmp_path / "pulled"
    arguments = ("--digest", signed.digest, "--trust", str(public))
    status, out, err = vidc("pull", f"hf:{NAME}", "-o", str(output), *arguments)
    assert (status, out) == (0, f"{output}\n"), err
    assert "nothing says who made them" not in err
    assert file_entries(output) == file_entries(bundle)
    status, _, err = vidc("pull", f"hf:{NAME}", "-o", str(output))
    assert status == 0, "an older bundle is replaced"
    assert "nothing says who made them" in err


def test_a_token_that_may_not_write_is_told(hub, vidc, bundle):
    hub.read_only = True
    status, out, err = vidc("push", str(bundle), f"hf:{NAME}")
    assert (status, out) == (2, "")
    assert "[VIDC-HUB-MISSING] the hub refuses access" in err
    assert "hf auth login" in err


def test_a_branch_holds_a_bundle_of_its_own(hub, vidc, bundle, tmp_path):
    assert vidc("push", str(bundle), f"hf:{NAME}@h100")[0] == 0
    assert hub.repositories[NAME]["main"] == {}
    assert vidc("pull", f"hf:{NAME}@h100", "-o", str(tmp_path / "pulled"))[0] == 0


def test_a_damaged_bundle_is_not_pushed(hub, vidc, bundle):
    (bundle / "denoise.onnx").write_bytes(b"grapy")
    status, _, err = vidc("push", str(bundle), f"hf:{NAME}")
    assert (status, hub.requests) == (1, [])
    assert "[VIDC-BUNDLE-ALTERED]" in err


@pytest.mark.parametrize("planted", ["file", "manifest", "extra", "missing"])
def test_a_bundle_that_the_server_changed_is_not_pulled(hub, vidc, bundle, tmp_path, planted):
    assert vidc("push", str(bundle), f"hf:{NAME}")[0] == 0
    files, output = hub.repositories[NAME]["main"], tmp_path / "pulled"
    if planted == "file":
        files["denoise.onnx"] = b"grapy"
    elif planted == "manifest":
        document = json.loads(files["manifest.json"])
        document["preset"] = "another"
        files["manifest.json"] = json.dumps(document).encode()
    elif planted == "missing":
        del files["denoise.onnx"]
    else:
        files["evil.so"] = b"not listed, so not downloaded"
    status, _, err = vidc("pull", f"hf:{NAME}", "-o", str(output))
    assert status == (0 if planted == "extra" else 1), err
    assert output.exists() is (planted == "extra")
    assert not (output / "evil.so").exists()
    assert [path.name for path in tmp_path.glob("*pulled*")] == ["pulled"][: planted == "extra"]


def test_a_foreign_bundle_is_refused_before_its_files_are_downloaded(hub, vidc, bundle, tmp_path):
    private, _ = key_pair(tmp_path, "maker")
    _, other = key_pair(tmp_path, "other")
    sign_bundle(bundle, private)
    assert vidc("push", str(bundle), f"hf:{NAME}")[0] == 0
    hub.requests.clear()
    output = tmp_path / "pulled"
    for arguments, code in [
        (("--digest", "ab" * 32), "VIDC-TRUST-DIGEST"),
        (("--trust", str(other)), "VIDC-TRUST-SIGNER"),
    ]:
        status, _, err = vidc("pull", f"hf:{NAME}", "-o", str(output), *arguments)
        assert status == 1
        assert f"[{code}]" in err
        assert not output.exists()
    assert not any("denoise.onnx" in request for request in hub.requests)


def test_pull_replaces_nothing_but_a_bundle(hub, vidc, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    status, _, err = vidc("pull", f"hf:{NAME}", "-o", str(tmp_path / "mine"))
    assert (status, hub.requests) == (2, [])
    assert "[VIDC-BUILD-OUTPUT]" in err
    assert (tmp_path / "mine" / "letter.txt").exists()
