"""Commands of README and documentation: their options exist, and so does what they name."""

import re
import tomllib

import click
import pytest
from documents import PAGES, ROOT, blocks, quoted_commands

from vidc.compiler.cli.group import root
from vidc.compiler.config.presets import preset_names

PROGRAMS = {"export", "hf", "make", "openssl", "pip", "polygraphy", "pre-commit", "python", "vidc"}
NEEDS_A_MARK = {"export", "hf", "python"}
"""Programs that no test runs: a block with one of them says what it needs."""
PLACEHOLDER = re.compile(r"[A-Z_.]+|\.\.\.|FOLDER.*")


def refused(words):
    """Returns why vidc refuses the words of a command line, None if it takes them."""
    command, context = root, click.Context(root, info_name="vidc")
    rest = words[1:]
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        command = command.get_command(context, rest[0])
        if command is None:
            return f"no command {rest[0]}"
        context, rest = click.Context(command, info_name=rest[0], parent=context), rest[1:]
    try:
        values, extra, _ = command.make_parser(context).parse_args(list(rest))
        for parameter in command.params:
            given = values.get(parameter.name)
            if isinstance(parameter.type, click.Path) or not isinstance(given, str):
                continue
            if not PLACEHOLDER.fullmatch(given):
                parameter.type_cast_value(context, given)
    except click.ClickException as error:
        return error.format_message()
    unknown = [word for word in extra if not PLACEHOLDER.fullmatch(word)]
    return f"unexpected {unknown}" if unknown else None


def commands():
    for block in blocks("bash"):
        for words in block.commands:
            while "=" in words[0] and words[0].partition("=")[0].isupper():
                words = words[1:]
            yield block, words


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("vidc build tiny --no-such-option 1", "--no-such-option"),
        ("vidc run out --seed many", "many"),
        ("vidc nothing", "nothing"),
        ("vidc validate out/tiny more", "more"),
    ],
)
def test_finds_a_wrong_command(words, reason):
    assert reason in refused(words.split())


def test_commands_of_vidc_have_the_options_that_pages_name():
    found = [(block.page, words) for block, words in commands() if words[0] == "vidc"]
    found += list(quoted_commands())
    assert len(found) > 60
    assert [
        (page, words, why)
        for page, words in found
        if (why := refused(words[: words.index(">")] if ">" in words else words)) is not None
    ] == []


def test_presets_of_build_commands_exist():
    named = {
        words[2]
        for _, words in commands()
        if words[:2] in (["vidc", "build"], ["vidc", "calibrate"]) and not words[2].startswith("-")
    }
    assert len(named) > 5
    assert {name for name in named if "/" not in name} <= {*preset_names()}


def test_other_programs_are_known_and_marked():
    wrong = []
    for block, words in commands():
        if words[0] not in PROGRAMS:
            wrong.append((block.page, words))
        elif words[0] in NEEDS_A_MARK and block.needs is None:
            wrong.append((block.page, words, "say what it needs: # needs ..."))
    assert wrong == []


def test_targets_of_make_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = {words[1] for _, words in commands() if words[0] == "make"}
    targets |= {name for page in PAGES for name in re.findall(r"`make ([\w-]+)`", page.read_text())}
    assert targets > {"demo", "docs", "test"}
    assert [name for name in targets if not re.search(rf"^{name}:", makefile, re.M)] == []


def test_extras_of_pip_exist():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = "\n".join(page.read_text() for page in PAGES)
    extras = {
        extra.strip()
        for group in re.findall(r"(?:vidc|\.)\[([a-z, ]+)\]", text)
        for extra in group.split(",")
    }
    assert extras > {"build", "cuda", "sign"}
    assert extras <= project["optional-dependencies"].keys()


def test_scripts_exist():
    scripts = {
        word for _, words in commands() if words[0] == "python" for word in words if ".py" in word
    }
    assert len(scripts) > 2
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_python_blocks_compile():
    found = [*blocks("python")]
    assert len(found) >= 2
    for block in found:
        compile(block.code, block.page, "exec")
