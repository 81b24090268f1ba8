from pathlib import Path

import pytest

from vidc.compiler.backends.aoti.cxx import cxx_defect, cxx_version


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Makes ``CXX`` a shell script that stands in for a compiler."""

    def make(script: str) -> None:
        file = tmp_path / "c++"
        file.write_text(f"#!/bin/sh\n{script}\n")
        file.chmod(0o755)
        monkeypatch.setenv("CXX", str(file))

    return make


def test_the_compiler_of_this_machine_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    assert cxx_defect() is None
    assert "g++" in cxx_version()


def test_a_compiler_that_links_the_standard_library_statically_is_found(compiler) -> None:
    compiler('exec g++ -static-libstdc++ "$@"')
    defect = cxx_defect()
    assert defect is not None
    assert "statically" in defect.reason
    assert "CXX" in defect.hint


def test_a_compiler_that_fails_is_quoted(compiler) -> None:
    compiler("echo 'cannot find -lstdc++' >&2; exit 1")
    defect = cxx_defect()
    assert defect is not None
    assert "cannot find -lstdc++" in defect.reason
    assert not defect.missing
    assert cxx_version() == "none"


def test_version_without_compiler_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    defect = cxx_defect()
    assert defect is not None
    assert "no-such-compiler" in defect.reason
    assert "install" in defect.hint
    assert defect.missing
    assert cxx_version() == "none"
