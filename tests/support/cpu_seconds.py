"""Plugin of pytest: lists the folders and tests that took most CPU time.

A fixture's time is that of the test which makes it, so one that is made twice shows as two slow
tests. Processes count once they have ended.
"""

import os
from collections import Counter

import pytest
from by_folder import folder

FOLDERS: Counter[str] = Counter()
TESTS: Counter[str] = Counter()


def _cpu() -> float:
    return sum(os.times()[:4])


class _Last:
    seconds = _cpu()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Adds the CPU seconds since the last report; pytest-xdist sends them along."""
    report = yield
    before, _Last.seconds = _Last.seconds, _cpu()
    report.cpu_seconds = _Last.seconds - before
    return report


def pytest_runtest_logreport(report):
    """Sums them up, in the process that reports."""
    # A report of a worker that crashed has none.
    seconds = getattr(report, "cpu_seconds", 0.0)
    TESTS[report.nodeid] += seconds
    FOLDERS[folder(report.nodeid)] += seconds


def pytest_terminal_summary(terminalreporter):
    """Writes the list, for runs of a minute and more."""
    if FOLDERS.total() < 60:
        return
    terminalreporter.section(f"{FOLDERS.total():.0f} CPU seconds")
    for name, seconds in FOLDERS.most_common(20) + TESTS.most_common(40):
        terminalreporter.write_line(f"{seconds:6.1f}  {name}")
