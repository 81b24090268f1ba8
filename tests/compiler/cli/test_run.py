"""Times that `vidc run` reports."""

import pytest

from vidc.compiler.cli import run


@pytest.fixture
def times(monkeypatch):
    """Seconds that the clock shows, one after the other."""
    shown = []
    monkeypatch.setattr(run.time, "perf_counter", lambda: shown.pop(0))
    return shown


def test_frames_of_the_first_block_do_not_count_in_the_rate(times):
    times += [10.0, 12.5, 13.5, 14.5]
    clock = run.Clock()
    for frames in (9, 12, 12):
        clock.tick(frames)
    assert clock.figures == {"seconds_to_first_frames": 2.5, "frames_per_second": 12.0}
    assert str(clock) == "first frames after 2.5 s, then 12.0 frames/s"


def test_one_block_has_no_rate(times):
    times += [10.0, 12.5]
    clock = run.Clock()
    clock.tick(9)
    assert clock.figures == {"seconds_to_first_frames": 2.5, "frames_per_second": None}
    assert str(clock) == "first frames after 2.5 s"
