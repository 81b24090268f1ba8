import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from page import Page

from vidc.compiler.validate.gates import Gate, Subject, Where
from vidc.compiler.validate.metrics import PixelMetrics, TensorMetrics, sqnr_db
from vidc.compiler.validate.report import (
    ComponentRow,
    FramePair,
    Report,
    RolloutRow,
    format_figure,
    format_levels,
    render_html,
)
from vidc.compiler.validate.worst import Histogram, Outlier, WorstTensor


def make_report(bundle: str = "tiny-cpu-fp32", blocks: int = 8, error: float = 1e-5) -> Report:
    metrics = TensorMetrics(True, error, 0.999999, 3e-5, sqnr_db(error))
    rng = np.random.default_rng(0)
    reference = rng.integers(0, 200, (12, 20, 3), dtype=np.uint8)
    return Report(
        bundle=bundle,
        about={"Model": "tiny", "Target": "cpu", "Precision": "fp32", "Backend": "onnxruntime"},
        tools={"vidc": "0.1.0", "torch": "2.13.0"},
        gates=[
            Gate(Where.COMPONENT, "denoise", "relative_l2", error, 1e-4),
            *(
                Gate(Where.ROLLOUT, "rollout", "relative_l2", error, 1e-3, block=b)
                for b in range(blocks)
            ),
            *(Gate(Where.PIXELS, "frames", "psnr_db", 60.0, 40.0, block=b) for b in range(blocks)),
        ],
        components=[ComponentRow(Subject("denoise"), metrics)],
        rollout=[RolloutRow(b, metrics, PixelMetrics(True, 60.0, 0.9999)) for b in range(blocks)],
        switches=[4],
        frames=[FramePair(2, 5, reference + np.uint8(40), reference)],
    )


def test_page_shows_measurements():
    words = Page(render_html(make_report())).words
    for text in (
        "tiny-cpu-fp32",
        "Validation passed",
        "17 of 17 passed",
        "vidc 0.1.0, torch 2.13.0",
        "denoise",
        "1.00e-05",
        "relative L2 ≤ 0.0001",
        "≥ 40",
        "The prompt switches before block 4.",
        "threshold 60",
        "Block 2, frame 5: largest error 40, mean 40.00 of 255 levels",
        "40 of 255 levels",
    ):
        assert text in words
    assert "What failed" not in words


def test_the_curve_has_a_point_for_each_block_a_threshold_and_the_switch():
    page = Page(render_html(make_report(blocks=11)))
    # SQNR and PSNR; SSIM has no gate.
    assert len(page.all("circle")) == 2 * 11
    classes = Counter(line["class"] for line in page.all("line"))
    assert (classes["threshold"], classes["switch"]) == (2, 2)


def test_psnr_and_ssim_have_a_curve_each():
    report = make_report()
    gates = [Gate(Where.PIXELS, "frames", "ssim", 0.9999, 0.99, block=b) for b in range(8)]
    rollout = [replace(row, decoded=row.block == 3) for row in report.rollout]
    page = Page(render_html(replace(report, gates=[*report.gates, *gates], rollout=rollout)))
    titles = {"SQNR (dB) block by block", "PSNR (dB) block by block", "SSIM block by block"}
    assert titles <= set(page.text)
    assert sum("hollow" in circle["class"] for circle in page.all("circle")) == 2
    assert "3 *" in page.words
    assert "what the bundle's own decoder makes of the reference's latents" in page.words
    assert "the bundle's own decoder" not in Page(render_html(report)).words


def test_frames_without_a_figure_are_crosses_on_their_curves():
    report = make_report()
    lost = {2: None, 3: PixelMetrics(False, -math.inf, -1.0)}
    rollout = [replace(row, pixels=lost.get(row.block, row.pixels)) for row in report.rollout]
    page = Page(render_html(replace(report, rollout=rollout)))
    assert len(page.all("path")) == 2
    assert len(page.all("circle")) == 8 + 6


def test_equal_frames_lie_at_the_top_and_pass():
    report = make_report()
    rollout = [replace(r, pixels=PixelMetrics(True, math.inf, 1.0)) for r in report.rollout]
    page = Page(render_html(replace(report, rollout=rollout)))
    assert len(page.all("circle")) == 16
    assert not page.all("path")


def test_lpips_has_a_column_where_it_was_measured():
    plain = make_report()
    report = replace(plain, rollout=[replace(row, lpips=0.0625) for row in plain.rollout])
    page = Page(render_html(report))
    assert page.words.count("0.0625") == 8
    table = render_html(report).split("<table>")[2]
    cells = [row.count("<td") + row.count("<th ") for row in table.split("<tr")[1:]]
    assert len(set(cells)) == 1
    assert "LPIPS" not in Page(render_html(plain)).words
    noted = replace(plain, notes=["LPIPS is not measured: it is <b>."])
    assert "LPIPS is not measured: it is <b>." in Page(render_html(noted)).words


def make_worst(**changed) -> WorstTensor:
    counts = tuple(range(48))
    return replace(
        WorstTensor(
            component="denoise",
            tensor="flow",
            call=4,
            shape=(1, 3, 16, 8, 12),
            compared=4608,
            not_finite=0,
            metrics=TensorMetrics(True, 0.125, 0.99, 3.5, 18.06),
            reference=Histogram(-2.0, 2.0, counts),
            candidate=Histogram(-2.0, 2.0, counts[::-1]),
            error=Histogram(-3.5, 3.5, counts),
            outliers=(Outlier((0, 1, 2, 3, 4), 1.5, math.nan), Outlier((0, 0, 0, 0, 1), 1.0, 4.5)),
        ),
        **changed,
    )


def test_the_worst_tensors_show_their_spread_and_outliers():
    html = render_html(replace(make_report(), worst=[make_worst()]))
    page = Page(html)
    for text in (
        "denoise: flow", "1 x 3 x 16 x 8 x 12, call 5: relative L2 1.25e-01, SQNR 18.1 dB",
        "4,608 values compared", "0, 1, 2, 3, 4", "NaN", "4.5", "3.5",
    ):  # fmt: skip
        assert text in page.words
    # Bins without a value have no bar.
    assert len(page.all("rect")) == 2 * 47
    broken = TensorMetrics(False, math.inf, -1.0, math.inf, -math.inf)
    lost = make_worst(metrics=broken, not_finite=7)
    assert "7 values NaN or Inf" in Page(render_html(replace(make_report(), worst=[lost]))).words


def test_page_is_self_contained():
    html = render_html(make_report())
    page = Page(html)
    names = {tag for tag, _ in page.elements}
    assert not names & {"script", "link", "iframe", "object", "embed", "base", "form", "a"}
    assert "url(" not in html
    assert "@import" not in html
    assert "http://" not in html
    assert "https://" not in html
    pictures = page.all("img")
    assert len(pictures) == 3
    assert all(img["src"].startswith("data:image/png;base64,") for img in pictures)


def test_the_page_is_accessible():
    page = Page(render_html(replace(make_report(), worst=[make_worst()])))
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("title")) >= 1
    assert all(img["alt"] for img in page.all("img"))
    assert all(svg["role"] == "img" and svg["aria-labeledby"] for svg in page.all("svg"))
    assert len(page.all("table")) == len(page.all("caption")) == 3
    assert all(th.get("scope") in ("row", "col") for th in page.all("th"))
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    for _, attributes in page.elements:
        assert set((attributes.get("aria-labeledby") or "").split()) <= ids


def test_light_and_dark_define_the_same_colors():
    html = render_html(make_report())
    light, dark = (set(re.findall(r"(--[a-z-]+):", block)) for block in html.split("@media")[:2])
    assert light
    assert light == dark
    assert set(re.findall(r"var\((--[a-z-]+)\)", html)) <= light


EVIL = """<script>alert(1)</script>"><img src=x onerror='alert(1)'>{{ 7 * 7 }}"""


def test_every_text_is_escaped():
    plain = make_report()
    evil = Report(
        bundle=EVIL,
        about={EVIL: EVIL},
        tools={EVIL: EVIL},
        gates=[
            Gate(Where.COMPONENT, EVIL, "relative_l2", 1.0, 1e-4),
            Gate(Where.ROLLOUT, EVIL, "relative_l2", 1.0, 1e-4, block=0),
        ],
        components=[ComponentRow(Subject(EVIL), None)],
        rollout=plain.rollout,
        switches=plain.switches,
        frames=plain.frames,
        worst=[make_worst(component=EVIL, tensor=EVIL)],
        notes=[EVIL],
    )
    page = Page(render_html(evil))
    assert not page.all("script")
    assert len(page.all("img")) == 3
    assert not any(name.startswith("on") for _, attrs in page.elements for name in attrs)
    assert page.words.count(EVIL) == 12


def test_failures_are_listed_and_named():
    report = make_report(error=0.5)
    page = Page(render_html(report))
    assert not report.passed
    assert "Validation failed" in page.words
    assert "8 of 17 passed" in page.words
    assert "What failed" in page.words
    failed_points = [c for c in page.all("circle") if "failed" in c["class"]]
    assert len(failed_points) == 8


def test_a_component_that_was_not_measured_or_not_finite_says_so():
    lost, broken = Subject("vae_decode"), Subject("denoise", 3)
    report = Report(
        bundle="b",
        about={},
        tools={},
        gates=[
            Gate(Where.COMPONENT, "vae_decode", "relative_l2", None, 1e-4),
            Gate(Where.COMPONENT, "denoise", "relative_l2", math.inf, 1e-4, block=3),
        ],
        components=[
            ComponentRow(lost, None),
            ComponentRow(broken, TensorMetrics(False, math.inf, -1.0, math.inf, -math.inf)),
        ],
    )
    page = Page(render_html(report))
    assert "not measured" in page.words
    assert "NaN or Inf" in page.words
    assert page.words.count("✗ failed") == 2
    assert not page.all("svg")
    assert not page.all("img")


def test_frames_that_nobody_asked_for_do_not_look_lost():
    plain = make_report(error=0.5)
    gates = [gate for gate in plain.gates if gate.where is not Where.PIXELS]
    rollout = [replace(row, pixels=None) for row in plain.rollout]
    html = render_html(replace(plain, gates=gates, rollout=rollout))
    assert html.count('<td colspan="2" class="mute">not measured</td>') == 8
    assert "compared for some blocks only" in html
    lost = [replace(gate, value=None) if gate.where is Where.PIXELS else gate
            for gate in plain.gates]  # fmt: skip
    html = render_html(replace(plain, gates=lost, rollout=rollout))
    assert html.count('<td colspan="2" class="bad">not measured</td>') == 8
    assert "compared for some blocks only" not in html


def test_empty_columns_are_left_out():
    report = make_report()
    plain, *_ = render_html(report).split("</table>")
    assert 'scope="col">Block' not in plain
    row = ComponentRow(Subject("denoise", 3), report.components[0].metrics)
    table, *_ = render_html(replace(report, components=[*report.components, row])).split("</table>")
    assert 'scope="col">Block' in table
    cells = [part.count("<td") + part.count("<th ") for part in table.split("<tr")[1:]]
    assert len(set(cells)) == 1


def test_a_block_without_a_figure_is_a_cross_on_the_curve():
    report = make_report()
    rollout = [
        RolloutRow(r.block, None if r.block == 5 else r.latents, None) for r in report.rollout
    ]
    page = Page(render_html(Report("b", {}, {}, report.gates, rollout=rollout)))
    assert (len(page.all("circle")), len(page.all("path"))) == (7, 1)
    assert "A cross marks a block without a finite figure." in page.words


def test_eager_has_a_column_where_it_was_measured():
    plain = make_report()
    eager = TensorMetrics(True, 4.5e-3, 0.99, 0.1, 40.0)
    report = replace(
        plain,
        components=[*plain.components, ComponentRow(Subject("kv_update"), None, eager)],
        rollout=[replace(row, eager=eager) for row in plain.rollout],
    )
    page = Page(render_html(report))
    assert page.words.count("4.50e-03") == 1 + len(plain.rollout)
    assert page.text.count("Eager") == 2
    assert "Eager: relative L2" in page.words
    assert "Eager:" not in Page(render_html(plain)).words
    table = render_html(report).split("<table>")[2]
    header, *rows = (row for row in table.split("<tr")[1:])
    cells = [row.count("<td") + row.count("<th ") for row in (header, *rows)]
    assert len(set(cells)) == 1


def test_a_report_without_gates_did_not_pass():
    words = Page(render_html(Report("b", {}, {}, gates=[]))).words
    assert "Validation failed" in words
    assert "nothing judged is not a pass" in words


def test_rounding_differences_look_dark():
    report = make_report()
    pair = report.frames[0]
    near = FramePair(0, 0, pair.reference + np.uint8(1), pair.reference)
    words = Page(render_html(Report("b", {}, {}, report.gates, frames=[near]))).words
    assert "16 of 255 levels" in words


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (1.234e-6, "relative_l2", "1.23e-06"),
        (0.9999994, "cosine", "0.999999"),
        (math.inf, "sqnr_db", "∞"),
        (-math.inf, "psnr_db", "-∞"),
        (math.nan, "ssim", "not a number"),
        (None, "ssim", "missing"),
    ],
)
def test_figures_read_well(value, metric, text):
    assert format_figure(value, metric) == text


@pytest.mark.parametrize(
    ("value", "metric", "threshold", "text"),
    [
        (0.030012, "relative_l2", 0.03, "3.001e-02"),
        (0.0299999, "relative_l2", 0.03, "2.99999e-02"),
        (0.03, "relative_l2", 0.03, "3.00e-02"),
        (0.02, "relative_l2", 0.03, "2.00e-02"),
        (29.96, "psnr_db", 30.0, "29.96"),
        (0.9899998, "ssim", 0.99, "0.9899998"),
        (math.inf, "psnr_db", 30.0, "∞"),
    ],
)
def test_a_figure_lies_on_its_side_of_the_threshold(value, metric, threshold, text):
    assert format_figure(value, metric, threshold) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0.00"), (0.000541, "0.00054"), (0.5, "0.50"), (40.0, "40.00")]
)
def test_nonzero_error_is_not_shown_as_zero(value, text):
    assert format_levels(value) == text


def test_pictures_come_before_tables_and_the_command_is_shown():
    report = replace(make_report(), command="vidc run BUNDLE --prompt TEXT -o out.mp4")
    html = render_html(report)
    assert html.index('id="frames"') < html.index('id="components"') < html.index('id="rollout"')
    assert "vidc run BUNDLE --prompt TEXT -o out.mp4" in Page(html).words
    assert "vidc run" not in Page(render_html(make_report())).words
