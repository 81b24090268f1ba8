"""The structure of the tree and its words."""

import re

import pytest
from structure import RIDDLE, ROOT, Structure

from vidc.compiler.config.presets import load_preset, preset_names

FAMILIES = re.compile(r"exporters/(parts|families)/|runtime/programs/(?!base\.py)")
"""Files that may name components: networks, families and programs."""
WORDS = re.compile(
    r"products in 8 bits|\bby token\b|\blanes?\b|\b(un)?quantis|\bnormalis|\bcolour|\bbehaviour",
    re.I,
)
"""Private words and British spellings that have a word of the field or an American one instead."""


@pytest.fixture(scope="module")
def structure():
    return Structure()


def test_the_tree_is_found(structure):
    assert len(structure.modules) > 200
    assert "vidc.compiler.build.build" in structure.modules
    assert structure.package_imports["compiler/build"]


def test_compiler_imports_downward(structure):
    assert structure.upward() == []


def test_no_packages_import_each_other(structure):
    assert structure.circles() == []


def test_files_are_short(structure):
    assert {str(file): lines for file, lines in structure.files.items() if lines > 400} == {}


def test_no_docstring_is_a_riddle(structure):
    assert [place for place, text in structure.docstrings() if RIDDLE.match(text)] == []


def test_components_are_named_by_their_family_alone(structure):
    models = [load_preset(preset).model for preset in preset_names()]
    names = set[str]().union(*(model.components for model in models))
    known = re.compile(rf"\b({'|'.join(sorted(names))})\b")
    found = [
        f"{file.relative_to(ROOT)}:{number}: {match.group()}"
        for file in structure.files
        if not FAMILIES.match(str(file.relative_to(ROOT)))
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (match := known.search(line))
    ]
    assert len(names) > 8
    assert found == []


def test_words_are_the_fields(structure):
    found = [
        f"{file.relative_to(ROOT)}:{number}: {match.group()}"
        for file in structure.files
        if file.suffix in (".py", ".j2")
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if (match := WORDS.search(line))
    ]
    assert found == []
