"""Budgets as they are given."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vidc.compiler.analyze.choose import Budget, parse_budget
from vidc.plugins.errors import UsageError


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [("psnr=38", "psnr", 38), (" psnr = 37.5 ", "psnr", 37.5), ("time=0.7", "time", 0.7),
     ("time=7e-1", "time", 0.7)],
)  # fmt: skip
def test_parses_psnr_and_time(text, kind, value):
    found = parse_budget(text)
    assert found == Budget(kind, value)
    assert parse_budget(str(found)) == found


@pytest.mark.parametrize(
    "text",
    ["", "38", "psnr", "psnr=", "psnr=x", "psnr=nan", "psnr=inf", "psnr=1e999", "psnr=0",
     "psnr=-3", "psnr=500", "time=0", "time=1", "time=1.5", "time=-0.5", "time=40ms", "speed=2",
     "psnr=38,time=0.7", "psnr=3-8", "time=\u0660.5"],
)  # fmt: skip
def test_rejects_malformed_budget(text):
    with pytest.raises(UsageError) as caught:
        parse_budget(text)
    assert (caught.value.code, caught.value.exit_code) == ("VIDC-BUDGET", 2)


@given(st.text())
def test_any_text_is_parsed_or_rejected(text):
    try:
        found, code = parse_budget(text), None
    except UsageError as error:
        found, code = None, error.code
    assert code == "VIDC-BUDGET" or found.value > 0
