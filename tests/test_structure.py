"""The structure of the tree: layers, circles, sizes and words."""

import pytest
from structure import Structure


@pytest.fixture(scope="module")
def structure():
    return Structure()


def test_the_compiler_imports_downward(structure):
    assert structure.upward() == []


def test_no_packages_import_each_other(structure):
    assert structure.circles() == []


def test_files_are_short(structure):
    assert {str(file): lines for file, lines in structure.files.items() if lines > 400} == {}
