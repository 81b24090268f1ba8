import json
import math
import tomllib
from dataclasses import fields, replace
from importlib.resources import files

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vidc.compiler.validate.gates import (
    OF_EAGER,
    UPPER_LIMITS,
    Gate,
    Subject,
    Where,
    all_passed,
    judge,
    load_thresholds,
    load_trained_thresholds,
    looser,
    nearest_gates,
)
from vidc.compiler.validate.metrics import PixelMetrics, TensorMetrics, compare
from vidc.plugins.errors import UsageError

METRICS = sorted(UPPER_LIMITS | {"cosine", "sqnr_db", "psnr_db", "ssim"})
THRESHOLDS = {
    Where.COMPONENT: {"relative_l2": 1e-2, "cosine": 0.99},
    Where.ROLLOUT: {"relative_l2": 0.1},
    Where.PIXELS: {"psnr_db": 30.0},
}
GOOD = TensorMetrics(True, 1e-3, 0.9999, 0.1, 60.0)


def gate(metric: str, value: float | None, threshold: float) -> Gate:
    return Gate(Where.COMPONENT, "denoise", metric, value, threshold)


@given(st.sampled_from(METRICS), st.floats(allow_nan=False, width=32))
@settings(deadline=None)
def test_only_a_number_passes(metric, threshold):
    assert gate(metric, threshold, threshold).passed
    assert not gate(metric, math.nan, threshold).passed
    assert not gate(metric, None, threshold).passed


@given(st.sampled_from(METRICS), st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))
@settings(deadline=None)
def test_a_limit_has_a_direction(metric, value, threshold):
    small_is_good = metric in UPPER_LIMITS
    assert gate(metric, value, threshold).passed == (
        value == threshold or (value < threshold) == small_is_good
    )


@pytest.mark.parametrize("metric", METRICS)
def test_a_nan_in_a_tensor_fails_every_gate(metric):
    broken = compare(torch.tensor([1.0, math.nan]), torch.ones(2))
    pixels = PixelMetrics(False, -math.inf, -1.0)
    value = getattr(broken if hasattr(broken, metric) else pixels, metric)
    lenient = 1e30 if metric in UPPER_LIMITS else {"cosine": -0.9, "ssim": -0.9}.get(metric, -1e30)
    assert not gate(metric, value, lenient).passed


def test_judge_makes_a_gate_for_each_subject_and_metric():
    gates = judge(
        Where.COMPONENT,
        [Subject("text_kv"), Subject("denoise", 3)],
        {Subject("text_kv"): GOOD, Subject("denoise", 3): TensorMetrics(True, 1, 1, 1, 0)},
        THRESHOLDS,
    )
    assert [(g.component, g.block, g.metric, g.value, g.passed) for g in gates] == [
        ("text_kv", None, "relative_l2", 1e-3, True),
        ("text_kv", None, "cosine", 0.9999, True),
        ("denoise", 3, "relative_l2", 1, False),
        ("denoise", 3, "cosine", 1, True),
    ]
    assert not all_passed(gates)


def test_a_missing_block_fails():
    expected = [Subject("rollout", block) for block in range(3)]
    measured = {subject: GOOD for subject in expected if subject.block != 1}
    gates = judge(Where.ROLLOUT, expected, measured, THRESHOLDS)
    assert [g.passed for g in gates] == [True, False, True]
    assert gates[1].value is None


def test_a_subject_nobody_expected_is_a_bug():
    with pytest.raises(ValueError, match="not expected"):
        judge(Where.ROLLOUT, [], {Subject("rollout", 0): GOOD}, THRESHOLDS)


def test_no_gates_do_not_pass():
    assert not all_passed([])
    assert all_passed([gate("cosine", 1.0, 0.9)])


def test_json_follows_the_contract_and_is_strict():
    gates = [
        Gate(Where.ROLLOUT, "rollout", "relative_l2", 0.5, 0.1, block=7),
        gate("sqnr_db", math.inf, 20.0),
        gate("relative_l2", None, 0.1),
    ]
    documents = json.loads(json.dumps([g.to_json() for g in gates], allow_nan=False))
    assert documents[0] == {
        "where": "rollout",
        "component": "rollout",
        "metric": "relative_l2",
        "value": 0.5,
        "threshold": 0.1,
        "passed": False,
        "block": 7,
    }
    assert "block" not in documents[1]
    assert [(d["value"], d["passed"]) for d in documents[1:]] == [(None, True), (None, False)]


def test_every_threshold_names_a_metric_that_is_measured_there():
    text = files("vidc.configs").joinpath("thresholds.toml").read_text()
    tensor = {f.name for f in fields(TensorMetrics)} & set(METRICS)
    pixel = {f.name for f in fields(PixelMetrics)} & set(METRICS)
    assert tensor | pixel == set(METRICS)
    for precision in tomllib.loads(text):
        thresholds = load_thresholds(precision)
        assert set(thresholds) == set(Where) - {Where.FORCED}
        for where, limits in thresholds.items():
            assert limits
            assert set(limits) <= (pixel if where is Where.PIXELS else tensor | {OF_EAGER})
            assert all(isinstance(limit, float) for limit in limits.values())


@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_trained_thresholds_of_8_bit_precisions(precision):
    free, forced = (
        load_trained_thresholds(precision, where) for where in (Where.PIXELS, Where.FORCED)
    )
    # What holds for any weights is no stricter, and judges no other metrics.
    anyway = load_thresholds(precision)[Where.PIXELS]
    assert anyway.keys() == free.keys() == forced.keys()
    assert looser(anyway, free) == anyway
    # Errors of earlier blocks add to those of a free block.
    assert looser(free, forced) == free


def test_high_precision_has_no_trained_thresholds():
    assert (
        load_trained_thresholds("bf16", Where.FORCED)
        == load_trained_thresholds("bf16", Where.PIXELS)
        == {}
    )
    with pytest.raises(UsageError, match="VIDC-VALIDATE-PRECISION"):
        load_trained_thresholds("fp4", Where.FORCED)


def test_no_figure_is_gated_twice():
    """SQNR is the relative error on another scale."""
    text = files("vidc.configs").joinpath("thresholds.toml").read_text()
    for tables in tomllib.loads(text).values():
        for limits in tables.values():
            assert not {"relative_l2", "sqnr_db"} <= set(limits)


def test_fp32_thresholds_are_the_documented_ones():
    thresholds = load_thresholds("fp32")
    assert thresholds[Where.COMPONENT]["relative_l2"] == 1e-4
    assert thresholds[Where.ROLLOUT]["relative_l2"] == 1e-3
    assert thresholds[Where.PIXELS]["psnr_db"] == 40


def test_a_precision_without_thresholds_is_refused():
    with pytest.raises(UsageError, match="VIDC-VALIDATE-PRECISION") as error:
        load_thresholds("bf61")
    assert "'bf16'" in error.value.hint


@pytest.mark.parametrize(
    ("error", "eager", "threshold"),
    [
        (1.2e-2, 1e-2, 1.25e-2),
        (1.3e-2, 1e-2, 1.25e-2),
        (2.9e-2, 1.0, 3e-2),
        (3.1e-2, 1.0, 3e-2),
        (2.9e-2, math.inf, 3e-2),
        (2.9e-2, None, 3e-2),
        (9e-5, 0.0, 1e-4),
        (1.1e-4, 0.0, 1e-4),
    ],
)
def test_an_engine_may_miss_little_more_than_eager_does(error, eager, threshold):
    limits = {Where.COMPONENT: {"relative_l2": 3e-2, OF_EAGER: 1.25}}
    subject = Subject("denoise")
    own = {} if eager is None else {subject: replace(GOOD, relative_l2=eager)}
    (found,) = judge(
        Where.COMPONENT, [subject], {subject: replace(GOOD, relative_l2=error)}, limits, own
    )
    assert (found.metric, found.threshold) == ("relative_l2", threshold)
    assert found.passed == (error <= threshold)


@pytest.mark.parametrize("where", [Where.COMPONENT, Where.ROLLOUT])
def test_bf16_is_held_to_a_quarter_more_than_eager(where):
    assert load_thresholds("bf16")[where][OF_EAGER] == 1.25


def test_the_nearest_gate_of_each_level_and_metric_uses_most_of_its_limit():
    def gate(where, metric, value, threshold):
        return Gate(where, "denoise", metric, value, threshold)

    near = gate(Where.COMPONENT, "relative_l2", 9e-3, 1e-2)
    low = gate(Where.PIXELS, "psnr_db", 41.0, 40.0)
    lost = gate(Where.PIXELS, "ssim", None, 0.9)
    gates = [
        gate(Where.COMPONENT, "relative_l2", 1e-6, 1e-5), near,
        gate(Where.PIXELS, "psnr_db", 60.0, 40.0), low,
        gate(Where.PIXELS, "ssim", 0.99, 0.9), lost,
    ]  # fmt: skip
    assert nearest_gates(gates) == [near, low, lost]
    assert nearest_gates(gates[::-1]) == [lost, low, near]


@given(st.floats(0, 10), st.floats(0.01, 10), st.sampled_from(METRICS))
def test_a_gate_that_passed_uses_at_most_its_limit(value, threshold, metric):
    gate = Gate(Where.COMPONENT, "denoise", metric, value, threshold)
    assert (gate.share <= 1) is gate.passed or gate.share == pytest.approx(1)
