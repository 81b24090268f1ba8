"""Inductor's cache folder, whose path is part of an engine."""

import os
import tempfile
from pathlib import Path

from vidc.compiler.backends.aoti.inductor import inductor_cache


def folder():
    return Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])


def test_a_killed_builds_folder_is_used_again_and_a_running_ones_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = tmp_path / "program.pt2"
    program.write_text("program")
    before = folder()
    with inductor_cache(program):
        first = folder()
    assert not first.exists()
    (first / "left").mkdir(parents=True)
    (first / "file").touch()
    with inductor_cache(program):
        assert folder() == first
        assert list(first.iterdir()) == []
        with inductor_cache(program):
            assert folder() != first
    assert folder() == before
    assert list(tmp_path.iterdir()) == [program]
