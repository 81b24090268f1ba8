"""The GPU is started while torch is imported, for bundles of a GPU alone."""

import json
import os
import subprocess
import sys

import pytest

from vidc.plugins.errors import UsageError
from vidc.runtime import load, start

STARTED = """
import sys, threading
from vidc.runtime.start import start_gpu
before = threading.active_count()
thread = start_gpu(sys.argv[1])
assert "torch" not in sys.modules
if thread is not None:
    thread.join()
print(thread is not None)
"""


def started(folder) -> bool:
    """Starts the GPU of a folder's bundle in a new process, which may have none."""
    command = [sys.executable, "-c", STARTED, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip() == "True"


def manifest(folder, text: str):
    folder.mkdir()
    (folder / "manifest.json").write_text(text)
    return folder


@pytest.mark.parametrize(("capability", "starts"), [("9.0", True), (None, False)])
def test_starts_for_a_bundle_of_a_gpu(tmp_path, capability, starts):
    target = {"target": {"compute_capability": capability}}
    assert started(manifest(tmp_path / "bundle", json.dumps(target))) is starts


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", "[" * 5000, '{"target": "h100"}'])
def test_leaves_broken_manifests_to_load(tmp_path, text):
    folder = manifest(tmp_path / "bundle", text)
    assert not start._is_for_gpu(folder)


def test_does_not_wait_for_the_writer_of_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "manifest.json")
    assert not started(tmp_path)


def test_starts_nothing_once_torch_is_imported(tmp_path):
    target = {"target": {"compute_capability": "9.0"}}
    assert start.start_gpu(manifest(tmp_path / "bundle", json.dumps(target))) is None


@pytest.mark.parametrize("path", ["absent", None])
def test_errors_are_those_of_load(tmp_path, path):
    with pytest.raises(UsageError, match="VIDC-BUNDLE-NOT"):
        load(path if path is None else tmp_path / path)
