import json
import os
import subprocess
import sys
from types import SimpleNamespace

import click
import pytest
import torch
from safetensors.torch import save_file

from vidc.compiler.cli import group
from vidc.compiler.cli.group import HELP, command_names, root
from vidc.plugins.errors import (
    BuildError,
    GateError,
    UnavailableError,
    UsageError,
    VidcError,
)


@pytest.fixture
def failing(monkeypatch):
    """A command ``fail`` that raises what it is given."""

    def install(error):
        @click.command()
        def command():
            raise error

        monkeypatch.setitem(sys.modules, "vidc.compiler.cli.fail", SimpleNamespace(command=command))
        monkeypatch.setattr(group, "command_names", lambda: ["fail"])
        monkeypatch.setitem(HELP, "fail", "Fail.")

    return install


@pytest.mark.parametrize(
    ("kind", "status"),
    [(GateError, 1), (UsageError, 2), (UnavailableError, 3), (BuildError, 4), (VidcError, 4)],
)
def test_an_error_ends_with_its_status_and_says_what_to_try(vidc, failing, kind, status):
    failing(kind("VIDC-SOME-CODE", "it broke", "mend it"))
    assert vidc("fail") == (status, "", "[VIDC-SOME-CODE] it broke\n  try: mend it\n")


@pytest.mark.parametrize("arguments", [("-v", "fail"), ("fail", "-v"), ("fail", "--verbose")])
def test_verbose_adds_the_traceback(vidc, failing, arguments):
    failing(GateError("VIDC-SOME-CODE", "it broke", "mend it"))
    status, out, err = vidc(*arguments)
    assert (status, out) == (1, "")
    assert "Traceback" in err
    assert err.endswith("[VIDC-SOME-CODE] it broke\n  try: mend it\n")


def test_an_unforeseen_error_is_reported_as_a_bug(vidc, failing):
    failing(ZeroDivisionError("division by zero"))
    status, out, err = vidc("fail")
    assert (status, out) == (4, "")
    assert err.startswith("[VIDC-INTERNAL] vidc failed: ZeroDivisionError: division by zero\n")
    assert "-v" in err
    assert "Traceback" not in err


def test_an_interrupt_ends_with_130(vidc, failing):
    failing(KeyboardInterrupt())
    status, out, err = vidc("fail")
    assert (status, out) == (130, "")
    assert "interrupted" in err


IMPORTING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Finder())
from vidc.compiler.cli import main
"""
ENDING = """
import atexit, os, signal
atexit.register(os.kill, os.getpid(), signal.SIGINT)  # The last one that runs.
from vidc.compiler.cli import main
main(["presets", "list"])
"""


@pytest.mark.parametrize(
    ("script", "status", "shown"), [(IMPORTING, 130, "interrupted\n"), (ENDING, 0, "")]
)
def test_an_interrupt_is_no_traceback_before_and_after_the_command(script, status, shown):
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, shown)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("prestes",), "did you mean 'presets'?"),
        (("presets",), "Missing command"),
        (("presets", "list", "--jsn"), "--json"),
        (("explain",), "Missing argument"),
        (("completion", "tcsh"), "tcsh"),
        (("--verison",), "--version"),
    ],
)
def test_a_wrong_command_line_ends_with_2(vidc, arguments, words):
    status, out, err = vidc(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("[VIDC-CLI-USAGE]")
    assert words in err


def options():
    """Every option of every command, but those of a list and --help and -v."""
    for name in command_names():
        command = root.get_command(click.Context(root), name)
        inner = getattr(command, "commands", {"": command})
        for child, found in inner.items():
            for option in found.params:
                if isinstance(option, click.Option) and not option.multiple | option.is_eager:
                    yield [name, *filter(None, [child])], option


def test_an_option_given_twice_is_a_usage_error(vidc):
    count = 0
    for words, option in options():
        given = [option.opts[-1], *([] if option.is_flag else ["1"])]
        status, out, err = vidc(*words, *given, *given)
        assert (status, out) == (2, ""), (words, given)
        assert f"[VIDC-CLI-USAGE] {option.opts[-1]} is given 2 times" in err
        count += 1
    assert count > 60


def test_a_setting_given_twice_is_a_usage_error(vidc):
    status, _, err = vidc("build", "tiny", "--set", "stream.sink=0", "--set", "stream.sink=3")
    assert status == 2
    assert "[VIDC-CLI-USAGE] --set gives stream.sink twice" in err


def test_without_a_command_the_help_is_shown(vidc):
    status, out, _ = vidc()
    assert status == 0
    assert out.startswith("Usage: vidc")


def test_help_and_version_import_neither_torch_nor_a_subcommand():
    code = """
import json, sys
from vidc.compiler.cli import main
for argument in ("--help", "--version"):
    try:
        main([argument])
    except SystemExit as exited:
        assert exited.code == 0
commands = [m for m in sys.modules if m.startswith("vidc.compiler.cli.")]
print(json.dumps({"torch": "torch" in sys.modules, "modules": commands}))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    *_, last = done.stdout.splitlines()
    loaded = json.loads(last)
    assert not loaded["torch"]
    names = {name.removeprefix("vidc.compiler.cli.") for name in loaded["modules"]}
    assert names.isdisjoint(HELP)
    for name in command_names():
        assert f"  {name} " in done.stdout


ASKED = """
import json, sys
from vidc.compiler.cli import main
try:
    main()
except SystemExit as exited:
    assert not exited.code
print(json.dumps(sorted({"numpy", "onnx", "onnxruntime", "torch"} & set(sys.modules))))
"""


@pytest.mark.parametrize("name", command_names())
def test_a_command_s_help_imports_no_framework(name):
    done = subprocess.run(
        [sys.executable, "-c", ASKED, name, "--help"],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    help_text, _, loaded = done.stdout.rstrip().rpartition("\n")
    assert help_text.startswith("Usage:")
    assert loaded == "[]"


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("vidc pre", "presets"),
        ("vidc build ti", "tiny"),
        ("vidc build --gpu h100", "h100"),
        ("vidc build --precision int8", "int8"),
        ("vidc build --backend on", "onnxruntime"),
        ("vidc build --recipe kv-int8", "kv-int8"),
        ("vidc explain vidc-cli-code", "VIDC-CLI-CODE"),
    ],
)
def test_completion_imports_no_framework(words, offered):
    asked = {
        "_VIDC_COMPLETE": "bash_complete",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", ASKED],
        env=os.environ | asked, capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert done.stdout == f"plain,{offered}\n[]\n"


@pytest.mark.parametrize("name", command_names())
def test_the_listed_help_is_the_command_s_own(name):
    command = root.get_command(click.Context(root), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == HELP[name]


def test_a_reader_that_has_gone_away_is_no_error():
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-c", "from vidc.compiler.cli import main; main()", "presets", "list"],
            stdout=write,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def listed(redirection):
    main = "from vidc.compiler.cli import main; main()"
    command = f'exec "$0" -c "$1" presets list {redirection}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable, main],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip


def test_a_full_disk_behind_stdout_is_named():
    done = listed("> /dev/full")
    assert done.returncode == 3
    assert "[VIDC-CLI-STDOUT]" in done.stderr
    assert "No space left on device" in done.stderr
    assert "Exception" not in done.stderr


def test_a_closed_stdout_is_no_error():
    done = listed(">&-")
    assert (done.returncode, done.stderr) == (0, "")


LONG = "a" * 5000


@pytest.mark.parametrize(
    "arguments",
    [
        ("validate", LONG),
        ("inspect", f"{LONG}.onnx"),
        ("build", "tiny", "--gpu", "cpu", "--random-weights", "1", "--plan", "-o", LONG),
        ("presets", "show", f"./{LONG}.toml"),
    ],
    ids=lambda words: words[0],
)
def test_a_path_that_no_system_takes_is_no_bug_of_vidc(vidc, arguments):
    status, out, err = vidc(*arguments)
    assert status in (1, 2)
    assert out == ""
    assert "too long" in err
    assert len(err) < 12_000


def test_control_characters_of_names_are_shown_not_obeyed(vidc, tmp_path):
    name = "head.\x1b[2J\x9b31m\u202egnp\rx.weight"
    (tmp_path / "a").mkdir()
    save_file({name: torch.zeros(2)}, tmp_path / "a" / "m.safetensors")
    file = str(tmp_path / "a" / "m.safetensors")
    arguments = ("build", "tiny", "--gpu", "cpu", "--checkpoint", file, "--vae", file)
    status, out, err = vidc(*arguments, "-o", str(tmp_path / "b"))
    assert (status, out) == (4, "")
    assert "VIDC-CHECKPOINT-MISMATCH" in err
    assert r"head.\u001b[2J\u009b31m\u202egnp\rx.weight" in err
    assert all(c == "\n" or c.isprintable() for c in err)


def test_results_escape_control_characters_and_stay_json(vidc, make_bundle):
    name = "\x1b]0;title\x07 \x9b and 日本"
    bundle = str(make_bundle(tools={name: "1"}))
    for arguments in ((), ("--json",)):
        status, out, _ = vidc("inspect", bundle, *arguments)
        assert status == 0
        assert all(c == "\n" or c.isprintable() for c in out)
        assert r"\u001b]0;title\u0007 \u009b and 日本" in out
    assert json.loads(out)["tools"] == {name: "1"}


@pytest.mark.parametrize(("no_color", "colored"), [("", True), ("1", False)])
def test_a_code_is_red_on_a_terminal_alone(failing, monkeypatch, capsys, no_color, colored):
    from vidc.compiler.cli.main import main  # Imports torch.

    failing(GateError("VIDC-SOME-CODE", "it broke", "mend it"))
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with pytest.raises(SystemExit):
        main(["fail"])
    err = capsys.readouterr().err
    assert ("\x1b[31m[VIDC-SOME-CODE]\x1b[0m it broke" in err) is colored
    assert ("\x1b" in err) is colored
