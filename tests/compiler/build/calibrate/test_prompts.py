"""Prompts of a calibration."""

import json

import pytest
import torch
from safetensors.torch import save_file

from vidc.compiler.build.calibration_prompts import default_prompts, pairs, read_prompts
from vidc.compiler.quantize.document import MAX_TEXTS
from vidc.compiler.validate.golden import make_inputs
from vidc.compiler.validate.scenario import Scenario
from vidc.plugins.errors import UsageError


def embeddings(count, stream, seed=0):
    return torch.randn(count, *stream.text, generator=torch.Generator().manual_seed(seed))


def refused(path, stream, texts=True):
    with pytest.raises(UsageError) as caught:
        read_prompts(path, stream, 32, texts)
    return caught.value.code


def test_one_tensor_or_several_are_the_same_prompts(stream, tmp_path):
    given = embeddings(3, stream)
    save_file({"prompts": given}, tmp_path / "one.safetensors")
    save_file(
        {f"{i}": row.clone() for i, row in enumerate(given)}, tmp_path / "several.safetensors"
    )
    one, several = (
        read_prompts(tmp_path / f"{name}.safetensors", stream, 32, texts=False)
        for name in ("one", "several")
    )
    assert torch.equal(one.embedded(None), given)
    assert torch.equal(several.embedded(None), given)
    assert one.sha256 == several.sha256
    few = read_prompts(tmp_path / "one.safetensors", stream, 2, texts=False)
    assert len(few) == 2
    assert few.sha256 != one.sha256


def test_texts_by_line_or_as_a_list_are_the_same_prompts(stream, tmp_path):
    (tmp_path / "texts.txt").write_text("a fox\n\n  a hen \n")
    (tmp_path / "texts.json").write_text(json.dumps(["a fox", "a hen", " "]))
    lines, listed = (
        read_prompts(tmp_path / f"texts.{suffix}", stream, 32, texts=True)
        for suffix in ("txt", "json")
    )
    assert lines == listed
    assert lines.texts == ("a fox", "a hen")
    encoded = lines.embedded(lambda text: torch.full((1, 2, 3), float(len(text))))
    assert encoded[:, 0, 0].tolist() == [5, 5]


def test_a_preset_s_own_prompts_come_before_those_that_ship(stream):
    found = default_prompts(stream, 2, True, ("a fox", " ", "a hen", "a cat"))
    assert found.texts == ("a fox", "a hen")
    assert default_prompts(stream, 2, False, ("a fox",)).kind == "synthetic"
    with pytest.raises(UsageError, match=r"VIDC-CALIBRATE-PROMPTS.*calibrate.prompts"):
        default_prompts(stream, 2, True, (" ",))


def test_the_default_is_what_a_build_would_take(stream):
    drawn = default_prompts(stream, 3, texts=False)
    assert (drawn.kind, len(drawn)) == ("synthetic", 3)
    build = make_inputs(Scenario(2, 1, rollout=True), stream).prompts[:, 0]
    assert torch.equal(drawn.embedded(None)[:2], build)
    shipped = default_prompts(stream, 32, texts=True)
    assert (shipped.kind, len(shipped), len(set(shipped.texts))) == ("texts", 32, 32)


def test_drawn_prompts_end_in_padding_of_other_lengths(stream):
    length = stream.text[0]
    drawn = default_prompts(stream, 7, texts=False).embedded(None)
    filled = [int(prompt.any(-1).sum()) for prompt in drawn]
    assert filled == [-(-length * eighths // 8) for eighths in (2, 3, 4, 5, 6, 7, 2)]
    assert all(prompt[:count].any(-1).all() for prompt, count in zip(drawn, filled, strict=True))


def test_a_rollout_switches_to_the_next_prompt(stream):
    given = embeddings(3, stream)
    found = pairs(given)
    assert [torch.equal(pair[0], given[i]) for i, pair in enumerate(found)] == [True] * 3
    assert [torch.equal(pair[1], given[(i + 1) % 3]) for i, pair in enumerate(found)] == [True] * 3


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("none.txt", "\n \n"),
        ("none.json", "[]"),
        ("object.json", '{"a": 1}'),
        ("mixed.json", '["a", 1]'),
        ("broken.json", "["),
        ("prompts.csv", "a,b"),
        ("broken.safetensors", "?"),
    ],
)
def test_files_without_prompts(stream, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert refused(tmp_path / name, stream) == "VIDC-CALIBRATE-PROMPTS"


def test_more_text_than_a_calibration_keeps(stream, tmp_path):
    path = tmp_path / "long.json"
    path.write_text(json.dumps(["a fox", "x" * MAX_TEXTS]))
    with pytest.raises(UsageError, match=r"VIDC-CALIBRATE-PROMPTS.*524,288 may be kept"):
        read_prompts(path, stream, 2, texts=True)
    # Those that are not taken do not count.
    assert read_prompts(path, stream, 1, texts=True).texts == ("a fox",)


@pytest.mark.parametrize("name", ["missing.txt", "missing.safetensors"])
def test_files_that_are_missing(stream, tmp_path, name):
    assert refused(tmp_path / name, stream) == "VIDC-CALIBRATE-PROMPTS"


@pytest.mark.parametrize("value", [torch.nan, torch.inf, 0.0])
def test_embeddings_that_say_nothing(stream, tmp_path, value):
    save_file({"prompts": torch.full((2, *stream.text), value)}, tmp_path / "p.safetensors")
    assert refused(tmp_path / "p.safetensors", stream) == "VIDC-CALIBRATE-PROMPTS"


def test_embeddings_that_are_none(stream, tmp_path):
    save_file({"prompts": torch.zeros(0, *stream.text)}, tmp_path / "p.safetensors")
    assert refused(tmp_path / "p.safetensors", stream) == "VIDC-CALIBRATE-PROMPTS"
    save_file({}, tmp_path / "empty.safetensors")
    assert refused(tmp_path / "empty.safetensors", stream) == "VIDC-CALIBRATE-PROMPTS"


@pytest.mark.parametrize("shape", [(2, 15, 32), (2, 16, 31), (16,), (1, 2, 16, 32)])
def test_embeddings_of_another_shape(stream, tmp_path, shape):
    save_file({"prompts": torch.ones(shape)}, tmp_path / "p.safetensors")
    assert refused(tmp_path / "p.safetensors", stream) == "VIDC-PROMPT-SHAPE"


def test_embeddings_of_whole_numbers(stream, tmp_path):
    save_file({"p": torch.ones(2, *stream.text, dtype=torch.int64)}, tmp_path / "p.safetensors")
    assert refused(tmp_path / "p.safetensors", stream) == "VIDC-PROMPT-SHAPE"


def test_texts_without_a_text_encoder(stream, tmp_path):
    (tmp_path / "texts.txt").write_text("a fox")
    assert refused(tmp_path / "texts.txt", stream, texts=False) == "VIDC-PROMPT-NO-ENCODER"
