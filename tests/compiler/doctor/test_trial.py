"""Trial of a bundle in a process of its own."""

import signal

import pytest

from vidc.compiler.doctor import trial
from vidc.compiler.doctor.probes import Status
from vidc.compiler.doctor.trial import try_bundle

CRASH = """
import os, signal
from pathlib import Path

def load(bundle):
    os.kill(os.getpid(), signal.{signal})
"""


def test_a_folder_that_is_no_bundle_is_a_finding(tmp_path):
    found = try_bundle(tmp_path / "none")
    assert found.status is Status.BROKEN
    assert "there is no folder" in found.detail
    assert found.hint


@pytest.mark.parametrize("sent", [signal.SIGSEGV, signal.SIGBUS, signal.SIGKILL])
def test_a_crash_while_loading_is_a_finding(tmp_path, monkeypatch, sent):
    """A module in place of the loader crashes as a damaged package would."""
    (tmp_path / "crashing.py").write_text(CRASH.format(signal=sent.name))
    monkeypatch.syspath_prepend(tmp_path)
    import crashing

    monkeypatch.setattr(trial, "_load", crashing.load)
    found = try_bundle(tmp_path)
    assert found.status is Status.BROKEN
    assert "ended its process" in found.detail
