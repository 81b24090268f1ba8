"""What an interrupted analysis leaves, and who takes it up."""

import json
import math

import pytest

from vidc.compiler.analyze.state import State
from vidc.compiler.analyze.trials import Damage
from vidc.compiler.store.digest import sha256_json

KEY = "ab" * 32


def never():
    raise AssertionError("it is known")


def filled(path):
    state = State(path, KEY)
    assert state.damage("blocks.0.ffn.net.2", lambda: Damage(0.1 + 0.2, math.inf))
    assert state.psnr(["b", "a"], lambda: -math.inf) == -math.inf
    return path


def test_saved_figures_are_exact(tmp_path):
    state = State(filled(tmp_path / "state.json"), KEY)
    assert state.has_group("blocks.0.ffn.net.2")
    assert state.damage("blocks.0.ffn.net.2", never) == Damage(0.1 + 0.2, math.inf)
    assert state.psnr(["a", "b"], never) == -math.inf
    assert state.psnr(["a"], lambda: 3.0) == 3.0
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def damaged(text, how):
    document = json.loads(text)
    if how == "another key":
        return json.dumps(document | {"key": "cd" * 32})
    if how == "truncated":
        return text[:-1]
    if how == "empty":
        return ""
    if how == "changed":
        document["groups"]["blocks.0.ffn.net.2"][0] = (1.0).hex()
    if how == "no number":
        figures = {"groups": {"blocks.0.ffn.net.2": ["0x1p99999", "0x0p0"]}, "mixes": {}}
        document = {"key": KEY, "sha256": sha256_json(figures), **figures}
    if how == "no document":
        document = [document]
    if how == "without mixes":
        del document["mixes"]
    if how == "deep":
        return "[" * 10**5
    if how == "huge":
        return text + " " * 2**22
    return json.dumps(document)


@pytest.mark.parametrize(
    "how",
    [
        "another key",
        "truncated",
        "empty",
        "changed",
        "no number",
        "no document",
        "without mixes",
        "deep",
        "huge",
    ],
)
def test_foreign_or_damaged_file_is_ignored(tmp_path, how):
    path = filled(tmp_path / "state.json")
    path.write_text(damaged(path.read_text(), how))
    state = State(path, KEY)
    assert not state.has_group("blocks.0.ffn.net.2")
    assert state.damage("blocks.0.ffn.net.2", lambda: Damage(1.0, 2.0)) == Damage(1.0, 2.0)
    assert State(path, KEY).damage("blocks.0.ffn.net.2", never) == Damage(1.0, 2.0)
