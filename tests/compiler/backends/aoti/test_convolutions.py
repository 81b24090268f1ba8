"""Convolutions of compiled engines give the same on one thread as on several."""

import os
import subprocess
import sys

import convolving
import pytest
import torch

from vidc.compiler.backends.aoti.convolutions import bind_implementations


def test_dilates_pointwise_convolutions_only():
    module, x, program = convolving.exported()
    bind_implementations(program)
    torch.testing.assert_close(program.module()(x), module(x))
    dilations = [
        node.kwargs.get("dilation") or (node.args[5] if len(node.args) > 5 else None)
        for node in program.graph.nodes
        if node.op == "call_function" and "conv" in str(node.target)
    ]
    assert dilations == [[1, 1, 2], [1, 1, 2], [1, 2], None]


@pytest.mark.parametrize(("compiled", "run"), [(2, 1), pytest.param(1, 2, marks=pytest.mark.deep)])
def test_engine_is_correct_with_other_thread_count(tmp_path, compiled, run):
    for what, threads in (("compile", compiled), ("run", run)):
        command = [sys.executable, convolving.__file__, what, str(tmp_path / "between.pt2")]
        own = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, env=own, text=True, capture_output=True, timeout=300)
        assert done.returncode == 0, done.stderr[-2000:]
