import io
import sys

import pytest

from vidc.compiler.cli.progress import ERASE, stage_progress


def build(progress):
    progress.started("load")
    progress.finished("load", True, 0.0)
    progress.started("export")
    progress.note("export: waiting")
    progress.finished("export", False, 1.25)


def test_elsewhere_each_stage_is_a_line_on_stderr(capsys):
    with stage_progress(2) as progress:
        build(progress)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "load: cached\nexport: waiting\nexport: 1.2 s\n"


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """Makes stderr a terminal: in the test's body, since pytest sets stderr before it."""

    def install(columns=60):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("COLUMNS", str(columns))
        return stream

    return install


def test_on_a_terminal_one_line_holds_the_bar(terminal):
    stream = terminal()
    with stage_progress(2) as progress:
        build(progress)
    half, full = "#" * 15 + "-" * 15, "#" * 30
    assert stream.getvalue().split(ERASE)[1:] == [
        f"[{'-' * 30}] 0/2 load",
        f"[{half}] 1/2 load",
        f"[{half}] 1/2 export",
        "export: waiting\n",
        f"[{half}] 1/2 export",
        f"[{full}] 2/2 export\n",
    ]


def test_a_bar_never_wraps(terminal):
    stream = terminal(columns=20)
    with stage_progress(2) as progress:
        progress.started("a stage with a long name")
    assert len(stream.getvalue().split(ERASE)[1].rstrip("\n")) == 19


def test_the_bar_s_line_ends_when_the_build_fails(terminal):
    stream = terminal()

    def interrupted():
        with stage_progress(2) as progress:
            progress.started("load")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert stream.getvalue().endswith("load\n")
