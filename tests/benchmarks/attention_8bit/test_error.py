"""Targets of attention in FP8: an error of 0.03 against float64, and half of cuDNN's error."""

import json
from pathlib import Path

import pytest
import torch
from attention_8bit.checks import ASKED, exact, problem, relative
from attention_8bit.emulation import emulate

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "attention-8bit-cudnn-h200.json"
CPU, FP8 = torch.device("cpu"), torch.float8_e4m3fn


@pytest.fixture(scope="module")
def errors():
    """By valid length what an H200 measured, on the inputs that ``attention_8bit/inputs`` draws."""
    records = json.loads(RESULTS.read_text())["timing"]["records"]
    return {record["valid_length"]: record["against_float64"] for record in records}


def test_every_length_of_a_stream_was_measured(errors):
    assert sorted(errors) == [4680, 9360, 14040, 18720]


@pytest.mark.parametrize("form", ["fp8", "fp8_turns", "int8", "int8_turns"])
def test_the_measured_error_is_what_was_asked(errors, form):
    for length, of in errors.items():
        assert 0 < of[form] < ASKED, length
        assert of[form] <= of["fp8_cudnn"] / 2, length


@pytest.mark.parametrize("sizes", [(140, 500, 1), (256, 2048, 2)])
@pytest.mark.parametrize("dtype", [FP8, torch.int8], ids=str)
def test_what_the_kernel_computes_is_as_near_on_a_cpu(dtype, sizes):
    """Step by step, with heads of 128; part of the ring and all of it."""
    queries, slots, heads = sizes
    at = problem(queries, slots, heads, 128, 1, CPU, dtype)
    for valid in (slots // 2, slots):
        found = emulate(at.query, at.query_scale, at.ring, at.scales, valid)
        assert relative(found, exact(at.inputs, valid)) < ASKED


def test_a_mean_that_values_do_not_get_back_is_too_far():
    """So the bound sees what it is for."""
    at = problem(140, 500, 1, 128, 1, CPU, FP8)
    at.scales.value_mean.zero_()
    found = emulate(at.query, at.query_scale, at.ring, at.scales, 500)
    assert relative(found, exact(at.inputs, 500)) > ASKED
