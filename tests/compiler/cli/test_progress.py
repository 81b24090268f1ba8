import io
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest

from vidc.compiler.cli.progress import stage_progress


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


def test_rich_is_imported_for_a_terminal_alone():
    code = """
import sys
from vidc.compiler.cli.progress import stage_progress
with stage_progress(1) as progress:
    progress.started("load")
    progress.finished("load", False, 0.5)
assert not [name for name in sys.modules if name.partition(".")[0] == "rich"]
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("", "load: 0.5 s\n")


class Terminal(io.StringIO):
    def isatty(self):
        return True

    def drawn(self):
        """Returns the lines that were written, without colors."""
        text = self.getvalue().replace("\x1b[2K", "\n")
        return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text))

    def shown(self):
        """Returns the lines that are there after all others were erased, without bars."""
        _, _, text = self.getvalue().rpartition("\x1b[2K")
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[━╸╺]", "", text)
        return [" ".join(line.split()) for line in text.splitlines()]


@pytest.fixture
def terminal(monkeypatch):
    """Makes stderr a terminal: in the test's body, since pytest sets stderr before it."""

    def install(columns=60, kind="xterm"):
        stream = Terminal()
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("TERM", kind)
        monkeypatch.setenv("COLUMNS", str(columns))
        return stream

    return install


@pytest.fixture
def clock(monkeypatch):
    """Rich's clock, which stands still."""
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr("rich.console.monotonic", lambda: now.seconds)
    return now


def test_a_terminal_shows_every_running_stage_with_its_time(terminal, clock):
    stream = terminal()
    with stage_progress(3) as progress:
        progress.started("load")
        clock.seconds += 3
        progress.started("export:[a]")
        assert stream.shown() == ["0/3 0:00:03", "load 0:00:03", "export:[a] 0:00:00"]
        clock.seconds += 2
        progress.finished("load", False, 5.0)
        assert stream.shown() == ["1/3 0:00:05", "export:[a] 0:00:02"]
        progress.finished("export:[a]", True, 2.0)
        progress.finished("resumed", True, 0.0)
    assert stream.shown() == ["3/3 0:00:05"]


def test_lines_of_a_build_stay_on_a_terminal_above_the_bars(terminal):
    stream = terminal()
    with stage_progress(1) as progress:
        progress.started("load")
        progress.note("load: waiting for [another] build")
        print("a warning", file=sys.stderr)
    assert {"load: waiting for [another] build", "a warning"} <= set(stream.drawn())
    assert stream.shown()[-1] == "load 0:00:00"


def test_a_terminal_keeps_stdout_for_results(terminal, capsys):
    stream = terminal()
    with stage_progress(1):
        print("out/bundle")
    assert capsys.readouterr().out == "out/bundle\n"
    assert "bundle" not in stream.getvalue()


def test_lines_of_a_narrow_terminal_do_not_wrap(terminal):
    stream = terminal(columns=20)
    with stage_progress(2) as progress:
        progress.started("a stage with a long name")
    assert max(map(len, stream.drawn())) <= 20


def test_a_terminal_that_cannot_move_its_cursor_gets_lines(terminal):
    stream = terminal(kind="dumb")
    with stage_progress(2) as progress:
        build(progress)
    assert stream.getvalue() == "load: cached\nexport: waiting\nexport: 1.2 s\n"


def test_the_cursor_is_back_when_a_build_is_interrupted(terminal):
    stream = terminal()

    def interrupted():
        with stage_progress(2) as progress:
            progress.started("load")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert sys.stderr is stream
    assert stream.getvalue().endswith("\n\x1b[?25h")
    assert stream.shown()[-1] == "load 0:00:00"
