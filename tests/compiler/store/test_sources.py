import importlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from vidc.compiler.store.sources import source_digest

FILES = {
    "__init__.py": "",
    "entry.py": (
        "import json\nfrom srcpkg.near import f\n\ndef run():\n    import srcpkg.deep.late\n"
    ),
    "near.py": "from . import far\nf = raise_if_executed\n",
    "far.py": "x = 1\n",
    "typed.py": "",
    "unrelated.py": "",
    "deep/__init__.py": "",
    "deep/late.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import srcpkg.typed\n"
        "else:\n    from srcpkg.deep import run_time\n"
    ),
    "deep/run_time.py": "",
    "deep/data.toml": "",
}
EXECUTED = {
    *("__init__.py", "entry.py", "near.py", "far.py"),
    *("deep/__init__.py", "deep/late.py", "deep/run_time.py"),
}


def digest_of(folder: Path) -> str:
    """The digest as a fresh process sees it: sources are read once a process."""
    code = (
        "from vidc.compiler.store.sources import source_digest;"
        "print(source_digest(['srcpkg.entry']))"
    )
    return subprocess.check_output(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(folder)}, text=True
    )


@pytest.fixture
def package(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / "srcpkg" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return tmp_path

    for name, text in FILES.items():
        write(name, text)
    return write


def test_sources_are_not_executed(
    package: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    source_digest(["srcpkg.entry"])
    assert "srcpkg" not in sys.modules


def test_only_sources_that_are_executed_change_the_digest(
    package: Callable[[str, str], Path], tmp_path: Path
) -> None:
    original = digest_of(tmp_path)
    for name, text in FILES.items():
        package(name, text + "\ny = 2\n")
        assert (digest_of(tmp_path) != original) == (name in EXECUTED), name
        package(name, text)


def test_covers_the_sources_of_vidc() -> None:
    assert source_digest(["vidc.compiler.store.run"]) != source_digest(["vidc.plugins.errors"])


def test_an_entry_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"vidc\.compiler\.nothing"):
        source_digest(["vidc.compiler.nothing"])
