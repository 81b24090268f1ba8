"""``--checkpoint demo``: the demo's weights by their name."""

import shutil
from pathlib import Path

import pytest

from vidc.compiler.cli import sources
from vidc.compiler.cli.sources import SourceOptions
from vidc.compiler.config.resolve import resolve
from vidc.plugins.errors import UsageError

ROOT = Path(__file__).parents[3]


def resolved(checkpoint):
    model = resolve("demo", gpu="cpu", environ={}).model
    return SourceOptions(checkpoint=Path(checkpoint)).resolve(model)[1]


def test_the_name_means_the_weights_beside_the_presets(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolved("demo") == resolved(ROOT / "configs" / "demo")


def test_a_folder_of_that_name_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for group in ("transformer", "vae", "taehv", "text_encoder", "tokenizer"):
        (tmp_path / "demo").mkdir(exist_ok=True)
        shutil.copytree(ROOT / "configs" / "demo" / group, tmp_path / "demo" / group)
    found = resolved("demo").checkpoints["transformer"]
    assert found.resolve() == tmp_path / "demo" / "transformer"


def test_without_them_the_package_that_has_them_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "files", lambda package: tmp_path / package)
    with pytest.raises(UsageError) as caught:
        resolved("demo")
    assert caught.value.code == "VIDC-CHECKPOINT-MISSING"
    assert f"there is no {tmp_path}/vidc.configs/demo" in caught.value.message
    assert "vidc-demo" in caught.value.hint
