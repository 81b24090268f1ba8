"""The portable attention kernel's own source on a CPU, with the matrix units replaced."""

import ctypes
import math
import shutil
import subprocess
from pathlib import Path

import held
import pytest
import torch
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from operators import FP8
from operators_8bit import attention_arguments
from portable_attention import OF_WEIGHTS, attending

from vidc import plugins
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.transposed_values import stored_at

CUDA = Path(next(iter(plugins.__path__))) / "cuda"
SUPPORT = Path(__file__).parents[1] / "support" / "cuda_on_cpu"
FORMATS = (FP8, torch.int8)


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("kernel")
    shared = ("sm75_ring_attention.cuh", "sm75_online_softmax.cuh", "sm75_bf16_product.cuh")
    real = (*(CUDA / name for name in shared), *CUDA.glob("ring_*.*h"))
    for file in (*real, *SUPPORT.iterdir()):
        shutil.copy(file, folder)
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-I."]
    command = [compiler, *flags, "portable_ring_attention.cpp", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return attending(ctypes.CDLL(str(folder / "kernel.so")).simulate)


def check(attend, *sizes, **others):
    held.attention(attention_arguments(*sizes, **others), attend=attend, slack=OF_WEIGHTS)


@settings(max_examples=examples(40))
@given(
    batch=st.integers(1, 2), tokens=st.integers(1, 70), heads=st.integers(1, 3),
    head_dim=st.sampled_from([64, 128]), slots=st.integers(1, 140), more=st.integers(0, 2),
    valid=st.integers(-1, 150), of=st.sampled_from(FORMATS), seed=st.integers(0, 99),
    output=st.sampled_from([torch.bfloat16, torch.float16, FP8]),
)  # fmt: skip
def test_matches_attention_of_dequantized_tensors(
    attend, batch, tokens, heads, head_dim, slots, more, valid, of, seed, output
):
    stored = 16 * (math.ceil(slots / 16) + more)
    sizes = (batch, tokens, heads, head_dim, slots, stored)
    check(attend, *sizes, valid, of, output, seed)


@pytest.mark.parametrize("of", FORMATS, ids=str)
@pytest.mark.parametrize("valid", [1, 15, 16, 63, 64, 65, 128, 139])
def test_invalid_slots_do_not_affect_the_output(attend, of, valid):
    taken = attention_arguments(1, 20, 2, 64, 140, 144, valid, of)
    wanted = attend(*taken.values())
    taken["key_cache"].view(torch.uint8)[:, valid:] = 0x7F
    # Within the last group of 16 NaN would count.
    taken["value_cache"].view(torch.uint8)[..., stored_at(torch.arange(valid, 144))] = 0x7E
    taken["value_cache"].view(torch.uint8)[..., -(-valid // 16) * 16 :] = 0x7F
    assert torch.equal(attend(*taken.values()), wanted)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_every_8bit_number_is_exact_in_float16(attend, of):
    """Each of them, NaN too, is the value of a key that all queries see alone."""
    for numbers in torch.arange(256, dtype=torch.uint8).split(64):
        taken = attention_arguments(1, 1, 1, 64, 1, 16, 1, of, torch.float16)
        taken["value_cache"].view(torch.uint8)[..., 0] = numbers
        taken["value_scale"].fill_(1)
        taken["value_mean"].zero_()
        found = attend(*taken.values()).flatten()
        wanted = numbers.view(of).float()
        torch.testing.assert_close(found.float(), wanted, rtol=0, atol=0, equal_nan=True)


def test_zero_queries_return_the_mean_of_valid_values(attend):
    taken = attention_arguments(1, 5, 2, 64, 100, 112, 83, torch.int8, torch.float16)
    taken["query"].zero_()
    taken["query_scale"].zero_()
    held.attention(taken, attend=attend, slack=OF_WEIGHTS)


def test_large_logit_takes_all_weight(attend):
    taken = attention_arguments(1, 20, 1, 64, 140, 144, 140, FP8)
    taken["query_scale"].mul_(60)
    held.attention(taken, attend=attend, slack=OF_WEIGHTS)


NAN = 0x7F
"""NaN in E4M3."""
AT = {"query": (0, 2, 1, 5), "key_cache": (0, 3, 1, 5), "value_cache": (0, 1, 5, 3)}


def not_finite(attend, of, name):
    """Number of outputs that are NaN with a NaN in one of the arguments."""
    taken = attention_arguments(2, 5, 3, 64, 40, 48, 37, of)
    if name in AT:
        taken[name].view(torch.uint8)[AT[name]] = NAN
    else:
        taken[name].view(-1)[-1] = torch.nan
    return int(attend(*taken.values()).isnan().sum())


@pytest.mark.parametrize("of", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("name", "count"),
    [("query_scale", 64), ("key_scale", 640), ("value_scale", 10), ("value_mean", 10)],
)
def test_nan_scale_or_mean_reaches_its_outputs(attend, of, name, count):
    """NaN reaches a query's head, a head, or a channel of every query."""
    for form in (attend, ring_attention_8bit):
        assert not_finite(form, of, name) == count


@pytest.mark.parametrize(("name", "count"), [("query", 64), ("key_cache", 320), ("value_cache", 5)])
def test_nan_in_fp8_reaches_its_outputs(attend, name, count):
    """NaN reaches a query's head, a head, or a channel of every query."""
    for form in (attend, ring_attention_8bit):
        assert not_finite(form, FP8, name) == count
