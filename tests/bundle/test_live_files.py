"""Files of a bundle that are special, or that change under a live session."""

import os
import shutil
import signal
import socket
import stat
import subprocess
import sys

import pytest
import torch

from vidc.plugins.errors import GateError
from vidc.runtime import load


@pytest.fixture
def copy(project, tmp_path):
    return shutil.copytree(project.bundle, tmp_path / "copy")


def link_out(path):
    path.symlink_to("/dev/zero")


def device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("only root makes devices")


def listen(path):
    # A socket's address has 107 characters at most.
    with pytest.MonkeyPatch.context() as patch, socket.socket(socket.AF_UNIX) as made:
        patch.chdir(path.parent)
        made.bind(path.name)


@pytest.mark.parametrize("verify", ["full", "fast", "off"])
@pytest.mark.parametrize("make", [link_out, device, os.mkfifo, listen])
@pytest.mark.parametrize("name", ["denoise.onnx", "weights/vae.safetensors", "manifest.json"])
def test_files_that_are_no_plain_files_are_refused(copy, name, make, verify):
    (copy / name).unlink()
    make(copy / name)
    with pytest.raises(GateError) as caught:
        load(copy, verify)
    assert caught.value.code in ("VIDC-BUNDLE-PATH", "VIDC-BUNDLE-MALFORMED")
    assert name in caught.value.message


@pytest.mark.parametrize("make", [link_out, device, os.mkfifo, listen])
def test_other_files_that_are_no_plain_files_are_refused(copy, make):
    make(copy / "more")
    with pytest.raises(GateError, match=r"VIDC-BUNDLE-PATH.*more"):
        load(copy)


def frames(session, bundle):
    generator = torch.Generator().manual_seed(1)
    session.prompt(torch.randn(bundle.spec.prompt_shape, generator=generator))
    return torch.cat([*session.stream(blocks=2)])


def test_a_live_session_reads_no_file_but_weights(copy):
    with load(copy) as bundle:
        session = bundle.session(seed=3)
        expected = frames(session, bundle)
        for path in copy.rglob("*"):
            if path.is_file() and path.parent.name != "weights":
                os.truncate(path, 0)
        session.reset(seed=3)
        assert torch.equal(frames(session, bundle), expected)


TRUNCATED = """
import os, sys
import torch
from vidc.runtime import load

with load(sys.argv[1]) as bundle:
    session = bundle.session()
    session.prompt(torch.zeros(bundle.spec.prompt_shape))
    session.step()
    os.truncate(sys.argv[1] + "/weights/transformer.safetensors", 0)
    print("truncated", flush=True)
    session.step()
"""


def test_weights_truncated_under_a_live_session_end_its_process(copy):
    """As SECURITY.md says: no error can be raised for a page that is gone."""
    done = subprocess.run(
        [sys.executable, "-c", TRUNCATED, copy], capture_output=True, text=True, timeout=120
    )
    assert done.stdout == "truncated\n"
    assert done.returncode == -signal.SIGBUS
