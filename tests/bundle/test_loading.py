"""Bundles that are loaded and refused: manifests, digests, signatures and loaders."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner
from signing_keys import key_pair

from vidc.compiler.build.sign import sign_bundle
from vidc.compiler.cli.sign import command as sign
from vidc.compiler.cli.validate import command as validate
from vidc.compiler.doctor.probes import Status
from vidc.compiler.doctor.trial import try_bundle
from vidc.plugins.errors import GateError, UnavailableError, UsageError
from vidc.plugins.signature import Signature
from vidc.runtime import load
from vidc.runtime.integrity import file_entry
from vidc.runtime.manifest import read_manifest, write_manifest
from vidc.runtime.record import RECORD_NAME, Record


@pytest.mark.parametrize("lacking", ["text_kv", "kv_update", "recache_5", "vae_decode"])
def test_a_bundle_without_a_part_of_the_stream_is_not_loaded(project, tmp_path, lacking):
    document = read_manifest(project.bundle)
    assert lacking in document.engines
    engines = {name: engine for name, engine in document.engines.items() if name != lacking}
    error = refused(project, tmp_path, replace(document, engines=engines))
    assert lacking in error.message


def test_a_bundle_without_the_optional_parts_is_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    optional = ("vae_encode_first", "vae_encode", "text_encoder")
    engines = {name: e for name, e in document.engines.items() if name not in optional}
    folder = linked(project, tmp_path, replace(document, engines=engines))
    assert load(folder, verify="off").engines.keys() == engines.keys()


def test_engines_that_disagree_on_a_state_are_not_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    text = document.engines["text_kv"]
    other = Signature(
        tuple(replace(t, dtype="float16") if t.name == "text.k.0" else t for t in text.signature)
    )
    engines = {**document.engines, "text_kv": replace(text, signature=other)}
    error = refused(project, tmp_path, replace(document, engines=engines))
    assert "text.k.0" in error.message


def swapped(document, component, one, other):
    """Names two states of an engine's signature by each other's name."""
    names = {one: other, other: one}
    for tensor in document["engines"][component]["signature"]:
        tensor["name"] = names.get(tensor["name"], tensor["name"])


EDITS = {
    "sigma": (lambda d: d["spec"]["sigmas"].__setitem__(1, 0.93), "RECORD"),
    "timestep": (lambda d: d["spec"]["timesteps"].__setitem__(1, 937.0), "RECORD"),
    "context": (lambda d: d["spec"].update(context_timestep=1.0), "RECORD"),
    "sink": (lambda d: d["spec"].update(sink=d["spec"]["sink"] - 1), "RECORD"),
    "grid": (lambda d: d["spec"]["grid"].reverse(), "FIELD"),
    "head": (lambda d: d["spec"].update(head_dim=22), "FIELD"),
    "window": (lambda d: d["spec"].update(window=11), "FIELD"),
    "level": (
        lambda d: d["engines"]["denoise"]["options"].update(
            graph_optimization_level="ORT_DISABLE_ALL"
        ),
        "RECORD",
    ),
    "swap": (lambda d: swapped(d, "denoise", "ring.k.0", "ring.v.0"), "RECORD"),
    "weights": (lambda d: d["weights"].update(transformer=d["weights"]["vae"]), "RECORD"),
    "not passed": (lambda d: d["validation"].update(passed=False), "RECORD"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_manifest_does_not_play(project, tmp_path, edit):
    """Each of these played other frames, or would."""
    change, code = EDITS[edit]
    document = json.loads((project.bundle / "manifest.json").read_text())
    change(document)
    folder = linked(project, tmp_path, read_manifest(project.bundle))
    (folder / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(GateError, match=f"VIDC-BUNDLE-{code}"):
        load(folder)


def test_a_bundle_that_did_not_pass_is_not_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    folder = linked(project, tmp_path, document)
    failed = replace(document, validation=replace(document.validation, passed=False))
    (folder / RECORD_NAME).unlink()
    Record.of(failed).write(folder)
    files = {**document.files, RECORD_NAME: file_entry(folder / RECORD_NAME)}
    write_manifest(replace(failed, files=files), folder)
    with pytest.raises(GateError, match="VIDC-BUNDLE-UNVALIDATED"):
        load(folder)


def test_a_bundle_of_another_digest_or_without_a_signature_is_not_loaded(project, tmp_path):
    document = read_manifest(project.bundle)
    load(project.bundle, digest=document.digest.upper()).close()
    with pytest.raises(GateError, match="VIDC-TRUST-DIGEST"):
        load(project.bundle, digest="0" * 64)
    for verify in ("fast", "off"):
        with pytest.raises(UsageError, match="VIDC-TRUST-VERIFY"):
            load(project.bundle, verify, digest=document.digest)


def test_a_signed_bundle_is_trusted_by_its_makers_key(project, tmp_path):
    pytest.importorskip("cryptography")
    folder = linked(project, tmp_path / "signed", read_manifest(project.bundle))
    private, public = key_pair(tmp_path, "maker")
    with pytest.raises(GateError, match="VIDC-TRUST-UNSIGNED"):
        load(folder, trust=public)
    done = CliRunner().invoke(sign, [str(folder), "--key", str(private)])
    assert done.stdout == f"{read_manifest(project.bundle).digest}\n"
    load(folder, trust=public).close()
    load(folder).close()
    done = CliRunner().invoke(validate, [str(folder), "--trust", str(key_pair(tmp_path, "b")[1])])
    assert done.exception.code == "VIDC-TRUST-SIGNER"


def test_a_bundle_that_is_damaged_is_not_signed(project, tmp_path):
    pytest.importorskip("cryptography")
    folder = tmp_path / "damaged"
    shutil.copytree(project.bundle, folder)
    (folder / "report.html").write_text("")
    with pytest.raises(GateError, match="VIDC-BUNDLE-TRUNCATED"):
        sign_bundle(folder, key_pair(tmp_path, "maker")[0])
    assert read_manifest(folder).signature is None


def test_a_bundle_is_tried_in_a_process_of_its_own(project):
    assert try_bundle(project.bundle).status is Status.GOOD


def linked(project, folder, document):
    """The bundle under another manifest."""
    shutil.copytree(project.bundle, folder, dirs_exist_ok=True, copy_function=os.link)
    (folder / "manifest.json").unlink()
    write_manifest(document, folder)
    return folder


def test_flipped_weights_do_not_play(project, tmp_path):
    """A weights file of any size is hashed unless ``fast`` is asked for."""
    folder = tmp_path / "flipped"
    shutil.copytree(project.bundle, folder)
    weights = folder / "weights/transformer.safetensors"
    assert weights.stat().st_size < 2**20
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(data)
    with pytest.raises(GateError, match="VIDC-BUNDLE-ALTERED"):
        load(folder)


@pytest.mark.parametrize("verify", ["full", "fast"])
def test_code_and_graphs_are_hashed_whatever_their_size(project, tmp_path, monkeypatch, verify):
    folder = tmp_path / "swapped"
    shutil.copytree(project.bundle, folder)
    monkeypatch.setattr("vidc.runtime.integrity.FAST_LIMIT", 0)
    graph = folder / "denoise.onnx"
    data = graph.read_bytes()
    graph.write_bytes(data.replace(b"vidc", b"vidk") if b"vidc" in data else data[:-1] + b"x")
    with pytest.raises(GateError, match=r"VIDC-BUNDLE-ALTERED.*denoise\.onnx"):
        load(folder, verify=verify)


@pytest.mark.parametrize("place", [0, -1])
def test_weights_are_hashed_while_engines_are_loaded(project, tmp_path, place):
    """Also if their loader fails first, the error names the file that differs."""
    folder = shutil.copytree(project.bundle, tmp_path / "bundle")
    weights = folder / "weights" / "transformer.safetensors"
    data = bytearray(weights.read_bytes())
    data[place] ^= 255
    weights.write_bytes(data)
    with pytest.raises(GateError, match=r"VIDC-BUNDLE-ALTERED.*transformer\.safetensors"):
        load(folder)


@pytest.mark.parametrize("name", ["integer_products", "torch_memory", "nothing", "__init__"])
def test_a_loader_that_is_none_is_refused(project, tmp_path, name):
    document = read_manifest(project.bundle)
    engines = {n: replace(e, loader=name) for n, e in document.engines.items()}
    with pytest.raises(UnavailableError, match="VIDC-ENGINE-LOADER"):
        load(linked(project, tmp_path, replace(document, engines=engines)))


def refused(project, folder, document):
    with pytest.raises(GateError, match="VIDC-BUNDLE-FIELD") as caught:
        load(linked(project, folder, document), verify="off")
    return caught.value
