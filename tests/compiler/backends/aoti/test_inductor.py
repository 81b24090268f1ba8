"""Inductor's cache folder, whose path is part of an engine."""

import os
import tempfile
from pathlib import Path

from torch._inductor.runtime.cache_dir_utils import triton_cache_dir

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


def test_each_program_s_triton_kernels_lie_in_its_own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    for name in ("first", "second"):
        program = tmp_path / name
        program.write_text(name)
        with inductor_cache(program):
            assert Path(triton_cache_dir(0)).is_relative_to(folder())
            # As inductor does at a process's first kernel, if the variable is not set.
            os.environ.setdefault("TRITON_CACHE_DIR", triton_cache_dir(0))
        assert "TRITON_CACHE_DIR" not in os.environ
