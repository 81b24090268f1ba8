"""A calibration on disk: what comes back, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from vidc.compiler.quantize import artifact
from vidc.compiler.quantize.artifact import read_calibration, write_calibration
from vidc.compiler.quantize.document import DOCUMENT, TENSORS, PromptsNote, texts_sha256
from vidc.plugins.errors import GateError, UsageError, VidcError

WEIGHTS = "ab" * 32


def refused(folder, model):
    with pytest.raises(VidcError) as caught:
        read_calibration(folder, model)
    return caught.value


def edit(folder, **fields):
    path = folder / DOCUMENT
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_what_is_written_comes_back(made, model, tmp_path):
    folder = made.write(tmp_path / "made")
    found = read_calibration(folder, model)
    assert replace(found.document, tensors=made.document.tensors) == made.document
    assert found.tensors.keys() == made.tensors.keys()
    assert all(torch.equal(found.tensors[name], value) for name, value in made.tensors.items())
    found.require_fits(model, WEIGHTS)


def test_the_same_calibration_is_the_same_bytes(made, tmp_path):
    one, two = made.write(tmp_path / "one"), made.write(tmp_path / "two")
    for name in (DOCUMENT, TENSORS):
        assert (one / name).read_bytes() == (two / name).read_bytes()


def test_the_largest_of_all_groups_is_what_counts(made, model, tmp_path):
    found = read_calibration(made.write(tmp_path / "made"), model)
    name = "blocks.0.ffn.net.2.input"
    assert torch.equal(found.amax(name), made.tensors[name].amax(0))
    assert torch.equal(found.amax("proj_out.weight"), made.tensors["proj_out.weight"])
    assert found.amax("blocks.1.attn1.k").shape == (3, 32)


def test_both_ends_say_what_is_left_when_the_mean_is_taken_off(made, model, tmp_path):
    keys = torch.randn(500, 3, 32, generator=torch.Generator().manual_seed(1)) + 5
    ends = {"low": keys.amin(0), "high": keys.amax(0), "mean": keys.mean(0)}
    for of, value in ends.items():
        made = made.with_tensor(f"blocks.0.attn1.k.{of}", value)
    found = read_calibration(made.write(tmp_path / "made"), model)
    expected = (keys - ends["mean"]).abs().amax(0)
    torch.testing.assert_close(found.centered_amax("blocks.0.attn1.k"), expected)
    # Less another's mean, beyond the ends too.
    for other in (ends["mean"] + 0.5, ends["high"] + 1, ends["low"] - 1):
        expected = (keys - other).abs().amax(0)
        torch.testing.assert_close(found.centered_amax("blocks.0.attn1.k", other), expected)


@pytest.mark.parametrize("name", [DOCUMENT, TENSORS])
def test_a_file_that_is_missing(made, model, tmp_path, name):
    folder = made.write(tmp_path / "made")
    (folder / name).unlink()
    error = refused(folder, model)
    assert (error.code, error.exit_code) == ("VIDC-CALIBRATION-MISSING", 2)
    assert name in error.message


def test_truncated_altered_or_longer_tensors(made, model, tmp_path):
    folder = made.write(tmp_path / "made")
    whole = (folder / TENSORS).read_bytes()
    altered = bytearray(whole)
    altered[-1] ^= 1
    for content in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"x", bytes(altered)):
        (folder / TENSORS).write_bytes(content)
        assert refused(folder, model).code == "VIDC-CALIBRATION-DAMAGED"


def test_what_the_digest_vouches_for_and_is_no_safetensors_file(made, model, tmp_path):
    folder = made.write(tmp_path / "made")
    content = b"not tensors at all"
    (folder / TENSORS).write_bytes(content)
    entry = artifact.file_entry(folder / TENSORS)
    edit(folder, tensors={"size": entry.size, "sha256": entry.sha256})
    assert refused(folder, model).code == "VIDC-CALIBRATION-DAMAGED"


@pytest.mark.parametrize("content", ["", "{", "[" * 100_000, "3", '{"schema": 3}', "\x00"])
def test_a_document_that_is_none(made, model, tmp_path, content):
    folder = made.write(tmp_path / "made")
    (folder / DOCUMENT).write_text(content)
    assert refused(folder, model).code == "VIDC-CALIBRATION-FIELD"


@pytest.mark.parametrize(
    "fields",
    [
        {"more": 1},
        {"schema": "1"},
        {"schema": True},
        {"seed": 1.5},
        {"groups": []},
        {"groups": [{"name": "text"}]},
        {"seed": -1},
        {"model": {"stream": 3}},
        {"prompts": {"kind": "embeddings", "count": -3, "sha256": "", "texts": []}},
    ],
    ids=str,
)
def test_a_document_with_a_field_that_is_wrong(made, model, tmp_path, fields):
    folder = made.write(tmp_path / "made")
    edit(folder, **fields)
    error = refused(folder, model)
    assert error.code == "VIDC-CALIBRATION-FIELD"
    assert str(folder / DOCUMENT) in error.message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_document_with_what_is_no_number_of_json(made, model, tmp_path, number):
    folder = made.write(tmp_path / "made")
    edit(folder, groups=[{"name": "text", "timestep": float(number)}])
    assert number in (folder / DOCUMENT).read_text()
    assert refused(folder, model).code == "VIDC-CALIBRATION-FIELD"


@pytest.mark.parametrize("size", [-1, 2**50, 2**63])
def test_a_size_that_the_file_has_not_is_not_read(made, model, tmp_path, size):
    folder = made.write(tmp_path / "made")
    edit(folder, tensors={"size": size, "sha256": ""})
    error = refused(folder, model)
    assert (error.code, str(size) in error.message) == ("VIDC-CALIBRATION-DAMAGED", True)


@pytest.mark.parametrize("change", ["reversed", "renamed", "other timestep"])
def test_groups_of_another_order_or_name_or_timestep_are_foreign(made, model, tmp_path, change):
    folder = made.write(tmp_path / "made")
    groups = json.loads((folder / DOCUMENT).read_text())["groups"]
    if change == "reversed":
        groups.reverse()
    elif change == "renamed":
        groups[1]["name"] = "foo"
    else:
        groups[1]["timestep"] -= 1
    edit(folder, groups=groups)
    assert refused(folder, model).code == "VIDC-CALIBRATION-FOREIGN"


def test_prompts_that_are_texts_are_kept_and_are_those_of_their_digest(made, model, tmp_path):
    texts = ("a fox", "ein Igel \u00fcber Gras")
    note = PromptsNote("texts", 2, texts_sha256(texts), texts)
    kept = replace(made, document=replace(made.document, prompts=note))
    folder = kept.write(tmp_path / "made")
    assert read_calibration(folder, model).document.prompts == note
    written = json.loads((folder / DOCUMENT).read_text())["prompts"]
    assert written["texts"] == list(texts)
    for wrong in (
        {"texts": ["a fox", "a hen"]},
        {"texts": []},
        {"texts": [*texts, "a hen"]},
        {"texts": "a fox"},
        {"texts": [1, 2]},
        {"count": 3},
        {"kind": "embeddings"},
    ):
        edit(folder, prompts=written | wrong)
        assert refused(folder, model).code == "VIDC-CALIBRATION-FIELD"
    edit(folder, prompts={name: value for name, value in written.items() if name != "texts"})
    assert refused(folder, model).code == "VIDC-CALIBRATION-FIELD"


@pytest.mark.parametrize("schema", [1, 2, 4])
def test_another_schema_is_named(made, model, tmp_path, schema):
    folder = made.write(tmp_path / "made")
    edit(folder, schema=schema)
    error = refused(folder, model)
    assert error.code == "VIDC-CALIBRATION-SCHEMA"
    assert f"schema {schema}, this vidc reads 3" in error.message
    assert "run vidc calibrate again" in error.hint


def test_a_calibration_of_the_schema_without_means_is_refused_for_its_schema(made, model, tmp_path):
    """As a vidc that knew no means of inputs wrote it."""
    older = {name: value for name, value in made.tensors.items() if ".input." not in name}
    assert len(older) < len(made.tensors)
    folder = replace(made, tensors=older).write(tmp_path / "made")
    assert refused(folder, model).code == "VIDC-CALIBRATION-FOREIGN"
    edit(folder, schema=1)
    error = refused(folder, model)
    assert error.code == "VIDC-CALIBRATION-SCHEMA"
    assert "run vidc calibrate again" in error.hint


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nan_and_inf_are_neither_written_nor_read(made, model, tmp_path, monkeypatch, value):
    name = "blocks.0.attn1.q"
    bad = made.with_tensor(name, torch.full_like(made.tensors[name], value))
    with pytest.raises(GateError) as caught:
        bad.write(tmp_path / "refused")
    assert caught.value.code == "VIDC-CALIBRATION-NONFINITE"
    assert list((tmp_path / "refused").iterdir()) == []
    assert read_unchecked(bad, model, tmp_path, monkeypatch) == "VIDC-CALIBRATION-NONFINITE"


@pytest.mark.parametrize("name", ["blocks.1.ffn.net.2.input", "proj_out.weight"])
@pytest.mark.parametrize("value", [0.0, 1e-44, -1.0])
def test_a_range_that_is_zero_or_below(made, model, tmp_path, monkeypatch, name, value):
    bad = made.with_tensor(name, torch.full_like(made.tensors[name], value))
    with pytest.raises(GateError) as caught:
        bad.write(tmp_path / "refused")
    assert caught.value.code == "VIDC-CALIBRATION-ZERO"
    assert name in caught.value.message
    assert read_unchecked(bad, model, tmp_path, monkeypatch) == "VIDC-CALIBRATION-ZERO"


def read_unchecked(made, model, tmp_path, monkeypatch):
    """The code that reading gives where writing let something through."""
    folder = tmp_path / "unchecked"
    folder.mkdir()
    with monkeypatch.context() as context:
        context.setattr(artifact, "_check_values", lambda tensors: None)
        write_calibration(folder, made.document, made.tensors)
    return refused(folder, model).code


def test_tensors_of_another_model(made, model, tmp_path):
    few = dict(made.tensors)
    del few["blocks.1.attn1.v.mean"]
    wide = made.with_tensor("proj_out.input", torch.ones(6, 97))
    half = made.with_tensor("proj_out.input", made.tensors["proj_out.input"].half())
    more = made.with_tensor("blocks.2.attn1.q", torch.ones(6, 3, 32))
    for number, bad in enumerate((replace(made, tensors=few), wide, half, more)):
        error = refused(bad.write(tmp_path / str(number)), model)
        assert (error.code, error.exit_code) == ("VIDC-CALIBRATION-FOREIGN", 2)


def test_a_calibration_of_other_weights_or_sizes_is_foreign(made, model, tmp_path):
    found = read_calibration(made.write(tmp_path / "made"), model)
    with pytest.raises(UsageError, match="weights abababababab, these are 000000000000") as caught:
        found.require_fits(model, "0" * 64)
    assert caught.value.code == "VIDC-CALIBRATION-FOREIGN"
    sampler = replace(model, sampler=replace(model.sampler, shift=3.0))
    with pytest.raises(UsageError, match=r"made with sampler.shift = 5.0, this is 3.0"):
        found.require_fits(sampler, WEIGHTS)
    found.require_fits(replace(model, stream=replace(model.stream, batch=2)), WEIGHTS)


def test_the_tensors_are_those_of_the_format(made, tmp_path):
    shapes = {n: tuple(t.shape) for n, t in load_file(made.write(tmp_path / "m") / TENSORS).items()}
    layer = {n.removeprefix("blocks.1."): s for n, s in shapes.items() if n.startswith("blocks.1.")}
    linears = [f"attn{i}.{part}" for i in (1, 2) for part in ("to_q", "to_k", "to_v", "to_out.0")]
    heads = {f"attn1.{part}": (6, 3, 32) for part in "qkv"}
    spread = ("mean", "low", "high")
    kept = {f"attn1.{p}.{of}": (3, 32) for p in "kv" for of in spread}
    assert layer == {
        **{f"{name}.input": (6, 96) for name in [*linears, "ffn.net.0.proj"]},
        **{f"{name}.weight": (96,) for name in [*linears, "ffn.net.2"]},
        "ffn.net.2.input": (6, 192),
        "ffn.net.0.proj.weight": (192,),
        **{f"{name}.input.{of}": (96,) for name in [*linears, "ffn.net.0.proj"] for of in spread},
        **{f"ffn.net.2.input.{of}": (192,) for of in spread},
        **heads,
        **kept,
    }
