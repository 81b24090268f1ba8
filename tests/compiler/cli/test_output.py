"""Text that commands print."""

import sys

import pytest

from vidc.compiler.cli.group import Invocation
from vidc.compiler.cli.output import WIDTH, fitted, print_text

ROWS = [
    ("load:transformer", "HIT", ""),
    ("package", "STALE", "after " + ", ".join(f"compile:component_{i}" for i in range(12))),
]


def test_a_plan_fits_its_width_and_loses_no_word():
    text = fitted(ROWS)
    assert max(map(len, text.splitlines())) <= WIDTH
    assert len(text.splitlines()) > 2
    assert text.split() == " ".join(" ".join(row) for row in ROWS).split()


def test_a_value_in_the_middle_wraps_in_its_own_column():
    long = "['a red square moving right over grass', 'a blue square moving right over grass']"
    rows = [("validate.prompts", long, "preset demo"), ("x", "1", "default")]
    first, *more, last = fitted(rows, 60).splitlines()
    assert first.endswith("preset demo")
    assert more
    assert all(line.startswith(" " * 18) for line in more)
    assert last.split() == ["x", "1", "default"]
    assert max(map(len, [first, *more])) <= 60


@pytest.mark.parametrize(
    ("terminal", "no_color", "colored"), [(True, "", True), (True, "1", False), (False, "", False)]
)
def test_statuses_are_colored_on_terminals_alone(monkeypatch, capsys, terminal, no_color, colored):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    print_text(fitted(ROWS) + "\nthe word HIT inside a sentence")
    out = capsys.readouterr().out
    assert ("\x1b[32mHIT\x1b[0m" in out) is colored
    assert out.count("\x1b[32m") == colored


def test_a_silenced_invocation_restores_stderr(capsys):
    invocation = Invocation()
    with invocation.streams:
        invocation.silence()
        sys.stderr.write("progress\n")
    sys.stderr.write("an error\n")
    assert capsys.readouterr().err == "an error\n"
