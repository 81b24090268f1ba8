"""The documentation's table of what is tested, held to backends, targets and models."""

import re
from itertools import product
from pathlib import Path

import pytest

from vidc.compiler import backends
from vidc.compiler.config.presets import load_preset, preset_names
from vidc.compiler.config.schema import EIGHT_BITS, PRECISIONS
from vidc.compiler.config.targets import targets

TEXT = (Path(__file__).parents[3] / "docs" / "backends.md").read_text()
HEAD = "| backend | targets | precisions | `text_encoder` |"


def table(head):
    lines = TEXT[TEXT.index(head) :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def listed(cell):
    return [each.strip(" `") for each in cell.split(",")]


def claims():
    """The row of each backend, target and precision."""
    (_, _, _, *kinds), _, *rows = table(HEAD)
    found = {}
    for name, on, precisions, *marks in rows:
        for key in product(listed(name), listed(on), listed(precisions)):
            assert key not in found, f"{key} is there twice"
            found[key] = dict(zip([kind.strip("`") for kind in kinds], marks, strict=True))
    return found


def kind(component):
    return re.sub(r"^(recache_)\d+$", r"\1N", re.sub(r"^vae_.*", "vae_*", component))


def test_table_has_every_combination():
    assert set(claims()) == set(product(backends.names(), targets(), PRECISIONS))
    kinds = {"text_encoder"}
    for preset in preset_names():
        kinds |= {kind(name) for name in load_preset(preset).model.components}
    assert all(set(row) == kinds for row in claims().values())


def test_each_mark_is_explained():
    marks = {mark for row in claims().values() for mark in row.values()}
    assert marks == {mark for mark, _ in table("| mark | |")[2:]}


@pytest.mark.parametrize("name", backends.names())
def test_backend_builds_match_table(name):
    for target, precision in product(targets().values(), PRECISIONS):
        row = claims()[name, target.name, precision]
        offered = precision in backends.backend(name).precisions(target)
        assert set(row.values()) != {"no"} if offered else set(row.values()) == {"no"}
        if offered:
            in_8_bits = precision in EIGHT_BITS
            assert (row["vae_*"] == row["text_encoder"] == "16") is in_8_bits


@pytest.mark.parametrize(
    ("name", "component"), list(product(backends.names(), ["denoise", "vae_*"]))
)
def test_table_marks_only_combinations_with_runs(name, component):
    """No GPU but Hopper's was at hand."""
    ran = {key[1] for key, row in claims().items()
           if key[0] == name and row[component] in ("V", "R", "F")}  # fmt: skip
    assert ran <= {"cpu", "h100", "h200"}
