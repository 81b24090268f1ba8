"""Tables of docs/backends/index.md, compared with backends, targets and models."""

import re
from itertools import product
from pathlib import Path

import pytest

from vidc.compiler import backends
from vidc.compiler.config.presets import load_preset, preset_names
from vidc.compiler.config.schema import EIGHT_BITS, PRECISIONS
from vidc.compiler.config.targets import targets

TEXT = (Path(__file__).parents[3] / "docs" / "backends" / "index.md").read_text()
OFFERED = "| backend | targets | precisions offered |"
TESTED = "| backend | targets | precisions | `text_encoder` |"


def table(head):
    lines = TEXT[TEXT.index(head) :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]


def listed(cell):
    return [each.strip(" `") for each in cell.split(",")]


def claims(head):
    """The remaining cells of each backend, target and precision, by column."""
    (_, _, _, *kinds), _, *rows = table(head)
    found = {}
    for name, on, precisions, *marks in rows:
        for key in product(listed(name), listed(on), listed(precisions)):
            assert key not in found, f"{key} is there twice"
            found[key] = dict(zip([kind.strip("`") for kind in kinds], marks, strict=True))
    return found


def kind(component):
    return re.sub(r"^(recache_)\d+$", r"\1N", re.sub(r"^vae_.*", "vae_*", component))


@pytest.mark.parametrize("name", backends.names())
def test_table_lists_exactly_what_a_backend_offers(name):
    offered = {
        (name, target.name, precision)
        for target, precision in product(targets().values(), PRECISIONS)
        if precision in backends.backend(name).precisions(target)
    }
    assert {key for key in claims(OFFERED) if key[0] == name} == offered


def test_tested_combinations_are_offered():
    assert claims(OFFERED).keys() >= claims(TESTED).keys()


def test_tested_table_has_every_kind_of_component_of_causal_video():
    kinds = {"text_encoder"}
    for preset in preset_names():
        if load_preset(preset).family == "causal_video":
            kinds |= {kind(name) for name in load_preset(preset).model.components}
    # A sentence above the table says what is tested of TAEHV.
    kinds -= {name for name in kinds if name.startswith("taehv_")}
    assert all(set(row) == kinds for row in claims(TESTED).values())


def test_each_mark_is_explained():
    marks = {mark for row in claims(TESTED).values() for mark in row.values()}
    assert marks == {mark for mark, _ in table("| mark | |")[2:]}


def test_only_the_transformer_is_marked_as_quantized():
    for (_, _, precision), row in claims(TESTED).items():
        in_8_bits = precision in EIGHT_BITS
        assert (row["vae_*"] == row["text_encoder"] == "16") is in_8_bits


def test_tested_rows_have_a_result():
    assert all({*row.values()} - {"?", "16"} for row in claims(TESTED).values())


def test_only_cpus_and_hopper_gpus_ran_engines():
    """No other GPU was available."""
    ran = {key[1] for key, row in claims(TESTED).items() if {*row.values()} & {"V", "R", "F"}}
    assert ran <= {"cpu", "h100", "h200"}
