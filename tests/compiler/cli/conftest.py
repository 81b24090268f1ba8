import pytest

from vidc.compiler.cli.main import main


@pytest.fixture
def vidc(capsys):
    """Runs a command line; returns its exit status, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exited:
            main(arguments)
        captured = capsys.readouterr()
        return exited.value.code, captured.out, captured.err

    return run


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """The build cache of the commands under test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("VIDC_CACHE", str(folder))
    return folder
