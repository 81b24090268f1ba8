"""Plans by the package's own lowering and converters, in a process of their own.

The package is installed with ``pip install --no-deps torch-tensorrt-rtx==2.13.0 dllist``: by its
metadata it wants an older TensorRT-RTX.
"""

import inspect
import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import fake_torch_tensorrt
import pytest

from vidc.compiler.backends.torch_tensorrt.package import PACKAGES

pytest.importorskip("tensorrt_rtx")
PACKAGE = PACKAGES["tensorrt_rtx"]
pytestmark = pytest.mark.skipif(
    PACKAGE.version() is None or find_spec("torch_tensorrt") is None,
    reason=f"{PACKAGE.distribution} is not installed",
)
BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
SCRIPT = """
import json, sys
sys.path.insert(0, {folder!r})
from torch_tensorrt_plans import Case, build
row = build(Case("tiny", {assignments!r}, {component!r}, {precision!r}))
print("ROW" + json.dumps(row))
"""
STRADDLING = ("stream.sink=2",)


def built(component, precision, assignments=()):
    script = SCRIPT.format(
        folder=str(BENCHMARKS), component=component, precision=precision, assignments=assignments
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("ROW"))
    return json.loads(line.removeprefix("ROW"))


@pytest.fixture(scope="module")
def denoise():
    return built("denoise", "bf16")


def test_the_ring_is_updated_in_place_and_attended_to_by_one_kernel(denoise):
    assert denoise["wrong"] == []
    assert (denoise["cache_updates"], denoise["attentions"], denoise["fused"]) == (4, 4, 4)


def test_converter_function_accepts_arguments(denoise):
    stand_in = fake_torch_tensorrt.convert_exported_program_to_serialized_trt_engine
    assert set(inspect.signature(stand_in).parameters) <= set(denoise["parameters"])
    assert denoise["torch_tensorrt"] == fake_torch_tensorrt.VERSION


@pytest.mark.parametrize(
    ("component", "precision", "assignments"),
    [
        ("text_kv", "fp32", ()),
        ("vae_decode", "fp16", ()),
        ("kv_update", "fp16", STRADDLING),
    ],
)
def test_a_plan_has_the_tensors_of_its_signature(component, precision, assignments):
    row = built(component, precision, assignments)
    assert row["wrong"] == []
    assert row["plan_bytes"] < 2**25, "the weights are outside"
