import subprocess
import sys

import pytest

from vidc.compiler.bench.usage import peak_rss_bytes

MUCH = 400 * 2**20
HERE = "from vidc.compiler.bench.usage import peak_rss_bytes; print(peak_rss_bytes())"


def test_it_is_this_process_s_own_whoever_started_it():
    held = b"x" * MUCH
    assert peak_rss_bytes() > len(held)
    assert int(subprocess.check_output([sys.executable, "-c", HERE], text=True)) < MUCH / 4


def test_it_stays_when_memory_is_given_back():
    before = peak_rss_bytes()
    held = b"x" * MUCH
    after = peak_rss_bytes()
    del held
    assert peak_rss_bytes() == pytest.approx(max(before, after), rel=0.01)
