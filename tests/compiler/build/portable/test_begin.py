"""A build that is begun where its backend lacks its package."""

from pathlib import Path

import pytest

from vidc.compiler.build.handover import begun
from vidc.compiler.build.sources import Sources
from vidc.compiler.cli import main
from vidc.compiler.cli.progress import LineProgress
from vidc.compiler.config.resolve import resolve
from vidc.plugins.errors import UnavailableError
from vidc.plugins.installation import install_extra

SAYS = f"TensorRT-RTX is not installed: {install_extra('rtx')}, which takes tensorrt-rtx from PyPI"


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vidc.compiler.backends.tensorrt.product.installed", lambda _: None)


def test_a_missing_package_is_named_with_its_index_before_the_first_stage(tmp_path: Path) -> None:
    settings = resolve("tiny", gpu="rtx4090", precision="fp16", environ={})
    folder, cache = tmp_path / "begun", tmp_path / "cache"
    with pytest.raises(UnavailableError) as caught:
        begun(settings, Sources({}, seed=1)).run(folder, cache, LineProgress())
    assert (caught.value.code, caught.value.exit_code) == ("VIDC-ENV-BACKEND", 3)
    assert "backend tensorrt builds for rtx4090 on any machine" in caught.value.message
    assert SAYS in caught.value.message
    assert "--backend" in caught.value.hint
    assert not folder.exists()
    assert not cache.exists()


def test_the_command_exits_as_where_something_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("VIDC_CACHE", str(tmp_path / "cache"))
    flags = ["--precision", "fp16", "--gpu", "rtx4090", "--random-weights", "1"]
    with pytest.raises(SystemExit) as stopped:
        main(["build", "tiny", *flags, "-o", str(tmp_path / "out")])
    assert stopped.value.code == 3
    said = capsys.readouterr()
    assert "VIDC-ENV-BACKEND" in said.err
    assert SAYS in " ".join(said.err.split())
    assert said.out == ""
