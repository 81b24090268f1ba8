import re
from dataclasses import replace

import pytest
from page import Page

from vidc.compiler.bench.record import SCHEMA, Stored, against_stored
from vidc.compiler.bench.report import render_html
from vidc.compiler.bench.text import bare, figure, interval, plain
from vidc.compiler.bench.verdict import Outcome


@pytest.fixture
def stored(make_result):
    result = make_result()
    judged = {name: values for name, values in result.streams["vidc"].items()
              if result.metrics[name].judged}  # fmt: skip
    machine = result.fingerprint["machine"]
    assert SCHEMA == 1
    return Stored("before.json", machine, result.workload, 0.0, judged)


def test_page_shows_measurements(make_result):
    words = Page(render_html(make_result())).words
    for text in (
        "tiny-cpu-fp32", "preset tiny", "timesteps 1000, 500", "a note.",
        "VAE decode of a block", "1.500x", "faster", "2.00 GB", "framed after 9.50 s",
        "a CPU", "torch", "vidc 0.1.0", "cd" * 32,
    ):  # fmt: skip
        assert text in words, text
    assert "Slower than before" not in words
    assert "known to be slower" not in words


def test_a_regression_is_on_top_and_in_its_row(make_result, stored):
    html = render_html(against_stored(make_result(slower=1.3), stored))
    assert "✗ Slower than before" in Page(html).words
    assert html.count('<tr class="failed">') == 5
    good = Page(render_html(against_stored(make_result(), stored))).words
    assert "✓ Nothing is known to be slower" in good


def test_unknown_verdict_is_neither_good_nor_bad(make_result, stored):
    html = render_html(against_stored(make_result(), replace(stored, machine={"cpu": "other"})))
    words = Page(html).words
    assert "Cannot tell whether it is slower" in words
    assert "Nothing is known to be slower" not in words
    assert "Slower than before" not in words


def test_a_reason_that_all_verdicts_share_is_given_once(make_result, stored):
    result = against_stored(make_result(), replace(stored, machine={"cpu": "other"}))
    words = Page(render_html(result)).words
    reasons = [each.verdict.reasons for each in result.judgments if each.gates]
    assert len(reasons) == 6
    shared = "before.json is of another machine"
    assert all(own[0].startswith(shared) for own in reasons)
    assert words.count(shared) == 1
    # Of cold starts there are too few besides, which is said in their row.
    assert words.count("theirs: n = 3, at least 6 samples are needed") == 2


def test_reasons_that_differ_stand_in_their_rows(make_result):
    few = make_result(n=4)
    assert len({each.verdict.reasons for each in few.judgments}) == 2
    words = Page(render_html(few)).words
    assert "Because" in words
    for each in few.judgments:
        assert "; ".join(each.verdict.reasons) in words


def test_titles_keep_capital_letters(make_result):
    words = Page(render_html(make_result())).words
    for text in ("VAE decode of a block", "Block to block, VAE included"):
        assert text in words, text
    assert "vae" not in words


def test_every_row_of_a_table_has_as_many_cells(make_result, stored):
    html = render_html(against_stored(make_result(n=4), stored))
    for table in re.findall(r"<table>.*?</table>", html, flags=re.DOTALL):
        columns = table.partition("</thead>")[0].count('scope="col"')
        spanned = 0
        for row in table.partition("</thead>")[2].split("<tr")[1:]:
            cells = row.count("<td") + row.count("<th ")
            wide = re.search(r'colspan="(\d+)"', row)
            tall = re.search(r'rowspan="(\d+)"', row)
            cells += int(wide[1]) - 1 if wide else 0
            assert cells + (spanned > 0) == columns
            spanned = int(tall[1]) - 1 if tall else max(0, spanned - 1)


def test_every_sample_is_drawn(make_result):
    page = Page(render_html(make_result(n=60)))
    lines = page.all("polyline")
    assert [len(line["points"].split()) for line in lines] == [60] * 6
    dots = [path["d"] for path in page.all("path") if path["class"] == "dots"]
    assert [path.count("h0") for path in dots] == [60] * 6


def test_one_stream_alone_has_no_verdicts(make_result):
    result = make_result()
    alone = replace(result, streams={"vidc": result.streams["vidc"]}, judgments=())
    words = Page(render_html(alone)).words
    assert "Verdicts" not in words


def test_few_samples_have_no_interval_and_no_tail(make_result):
    figures = render_html(make_result(n=4)).partition('id="figures"')[2].partition("</table>")[0]
    for text in ("95 % interval</th>", "P99</th>"):
        assert text not in figures, text
    assert "P99</th>" in render_html(make_result(n=100))


def test_page_is_self_contained(make_result):
    html = render_html(make_result())
    page = Page(html)
    names = {tag for tag, _ in page.elements}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form", "a", "img"}
    for text in ("url(", "@import", "http://", "https://"):
        assert text not in html


def test_the_page_is_accessible(make_result, stored):
    page = Page(render_html(against_stored(make_result(), stored)))
    assert page.all("html")[0]["lang"] == "en"
    assert page.all("svg")
    assert all(svg["role"] == "img" and svg["aria-labeledby"] for svg in page.all("svg"))
    assert len(page.all("table")) == len(page.all("caption"))
    assert all(th.get("scope") in ("row", "col", "rowgroup") for th in page.all("th"))
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.elements:
        assert set((attributes.get("aria-labeledby") or "").split()) <= set(ids)


def test_colors_are_defined(make_result):
    html = render_html(make_result())
    light, dark = (set(re.findall(r"(--[a-z-]+):", block)) for block in html.split("@media")[:2])
    assert light
    assert light == dark
    assert set(re.findall(r"var\((--[a-z-]+)\)", html)) <= light | {"--series"}


EVIL = """<script>alert(1)</script>"><img src=x onerror='alert(1)'>{{ 7 * 7 }}"""


def test_every_text_is_escaped(make_result):
    result = make_result(bundle=EVIL, workload={EVIL: EVIL}, notes=(EVIL,))
    verdict = replace(result.judgments[0].verdict, outcome=Outcome.CANNOT_TELL, reasons=(EVIL,))
    judgment = replace(result.judgments[0], against=EVIL, verdict=verdict)
    fingerprint = {"machine": {EVIL: EVIL}, "software": {}, "bundle": EVIL, "hash": EVIL}
    page = Page(render_html(replace(result, judgments=(judgment,), fingerprint=fingerprint)))
    assert not page.all("script")
    assert not page.all("img")
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert page.words.count(EVIL) == 11


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (269.84, "ms", "269.8 ms"),
        (0.32061, "ms", "0.3206 ms"),
        (12345.6, "ms", "12346 ms"),
        (-3.25, "ms", "-3.250 ms"),
        (0.0, "ms", "0.000 ms"),
        (1.5e9, "bytes", "1.50 GB"),
        (None, "ms", ""),
    ],
)
def test_figures_read_well(value, unit, text):
    assert figure(value, unit) == text


def test_figures_beside_a_unit_read_well():
    assert bare(269.84, "ms") == "269.8"
    assert bare(1.5e9, "bytes") == "1.50 GB"
    assert bare(None, "ms") == ""
    assert plain(4124.4, 3) == "4124"
    assert plain(8.6, 3) == "8.60"


def test_intervals_read_well():
    assert interval((269.1, 270.44), "ms") == "269.1 to 270.4"
    assert interval((1e9, 2e9), "bytes") == "1.00 GB to 2.00 GB"
    assert interval(None, "ms") == ""


def test_a_disturbed_measurement_has_a_banner_on_top(make_result):
    calm, disturbed = make_result(), make_result(disturbance=0.4)
    assert calm.banner is None
    assert calm.to_json()["banner"] is None
    assert 'class="banner"' not in render_html(calm)
    words = Page(render_html(disturbed)).words
    place = words.index("Disturbed: other processes took 40% of the CPU")
    assert place < words.index("preset tiny")
    assert "40%" in disturbed.to_json()["banner"]
