"""The check of the scorer: it passes where all is right, and fails by each of what it counts."""

import pytest
from demo_model import check_scorer

RIGHT = {
    "check_clips": {"color": 1.0, "shape": 1.0, "direction": 1.0, "objects too many": 0},
    "check_switches": {
        "before": 1.0, "follows": 1.0, "stays": 1.0, "follows without a switch": 0.0,
    },
    "check_long": {"right": 1.0, "of these right": 1.0, "least background PSNR, dB": 45.0},
    "check_absent": {"background": 0},
}  # fmt: skip


def checked(monkeypatch, name: str = "check_long", **changed: float) -> bool:
    for counted, rates in RIGHT.items():
        given = {**rates, **(changed if counted == name else {})}
        monkeypatch.setattr(check_scorer, counted, lambda *_, given=given: given)
    return check_scorer.check(clips=10, frames=13)[1]


def test_a_scorer_that_is_right_passes(monkeypatch):
    assert checked(monkeypatch)


@pytest.mark.parametrize(
    ("name", "what", "value"),
    [
        ("check_clips", "shape", 0.98),
        ("check_switches", "follows", 0.98),
        ("check_switches", "stays", 0.98),
        ("check_switches", "follows without a switch", 0.01),
        ("check_long", "right", 0.98),
        ("check_long", "of these right", 0.98),
        ("check_long", "least background PSNR, dB", 24.0),
        ("check_absent", "background", 1),
    ],
)
def test_a_scorer_that_errs_fails(monkeypatch, name, what, value):
    assert not checked(monkeypatch, name, **{what: value})


def test_clips_of_the_generator_are_counted_as_right():
    switched, long = check_scorer.check_switches(2), check_scorer.check_long(2)
    assert (switched["follows"], switched["follows without a switch"]) == (1, 0)
    assert (long["runs"], long["right"]) == (2, 1)
    assert long["least background PSNR, dB"] > 40
