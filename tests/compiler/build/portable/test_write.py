"""A portable build folder appears whole, in the place of an older one, or not at all."""

import errno
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from function_stage import FunctionStage, write_name

from vidc.compiler.build.build import Build
from vidc.compiler.build.handed_over import open_portable
from vidc.compiler.build.handover import DOCUMENT_NAME, Document, Handover
from vidc.compiler.build.stages import stages
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.resolve import Settings
from vidc.compiler.store.sources import versions
from vidc.plugins.errors import BuildError, UsageError


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def build(settings: Settings) -> Build:
    """Stages with the keys of the portable ones, which write their names."""
    made = []
    for stage in stages(settings, None):
        if stage.portable:
            key, work = stage.key(), partial(write_name, stage.name)
            tools = versions("torch")
            made.append(FunctionStage(stage.name, work, key.entries, key.config, tools=tools))
    return Build(settings, made, Handover(settings, tuple(stage.name for stage in made)), "slot")


def test_what_is_written_can_be_opened(
    settings: Settings, build: Build, cache: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out" / "a.portable"
    built = build.run(output, cache, LineProgress())
    assert not built.stages[-1].hit
    portable = open_portable(output)
    assert portable.settings == settings
    assert {n: s.components.key for n, s in portable.document.stages.items()} == {
        stage.name: stage.key for stage in built.stages[:-1]
    }
    assert os.listdir(tmp_path / "out") == ["a.portable"]


def test_no_path_of_this_machine_is_in_it(build: Build, cache: Path, tmp_path: Path) -> None:
    build.run(tmp_path / "out", cache, LineProgress())
    assert str(tmp_path) not in (tmp_path / "out" / DOCUMENT_NAME).read_text()


def test_the_same_folder_is_found_and_a_damaged_one_replaced(
    build: Build, cache: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    build.run(output, cache, LineProgress())
    before = (output / DOCUMENT_NAME).stat().st_ino
    assert build.run(output, cache, LineProgress()).stages[-1].hit
    assert (output / DOCUMENT_NAME).stat().st_ino == before
    data = output / "load" / "vae" / "a" / "data"
    for damage in (data.unlink, lambda: data.write_text("load:vaE")):
        damage()
        assert not build.run(output, cache, LineProgress()).stages[-1].hit
        open_portable(output)


def test_something_else_is_not_replaced(build: Build, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="VIDC-BUILD-OUTPUT"):
        build.run(tmp_path / "out", cache, LineProgress())


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "full"), KeyboardInterrupt()])
def test_a_full_disk_or_an_interrupt_leaves_the_older_folder(
    build: Build, cache: Path, tmp_path: Path, monkeypatch: Any, error: BaseException
) -> None:
    output = tmp_path / "x" / "out"
    build.run(output, cache, LineProgress())
    (output / "load" / "vae" / "a" / "data").write_text("another")

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(Document, "write", fail)
    with pytest.raises(BuildError if isinstance(error, OSError) else KeyboardInterrupt) as raised:
        build.run(output, cache, LineProgress())
    if isinstance(error, OSError):
        assert "VIDC-BUILD-DISK" in str(raised.value)
    assert (output / "load" / "vae" / "a" / "data").read_text() == "another"
    assert os.listdir(tmp_path / "x") == ["out"]
