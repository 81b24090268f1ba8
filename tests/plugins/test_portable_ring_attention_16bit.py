"""The kernel of attention over a ring of 16 bits, its own source on a CPU.

Matrix units are replaced by their definition, copies by such as arrive when they are waited for.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from attention_16bit import arguments, attending, held
from depth import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from vidc import plugins
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

CUDA = Path(next(iter(plugins.__path__))) / "cuda"
SUPPORT = Path(__file__).parents[1] / "support" / "cuda_on_cpu"
SOURCES = (
    "ring_attention_16bit.h", "sm75_ring_attention_16bit.cuh", "sm75_online_softmax.cuh",
    "sm75_attention_element.cuh", "sm75_bf16_product.cuh",
)  # fmt: skip
DTYPES = (torch.bfloat16, torch.float16)
both = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def compiled(folder, *flags):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    for file in (*(CUDA / name for name in SOURCES), *SUPPORT.iterdir()):
        shutil.copy(file, folder)
    flags = ["-std=c++17", "-O2", "-fno-strict-aliasing", "-shared", "-fPIC", "-I.", *flags]
    command = [compiler, *flags, "portable_ring_attention_16bit.cpp", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    return attending(ctypes.CDLL(str(folder / "kernel.so")).simulate)


@pytest.fixture(scope="module")
def attend(tmp_path_factory):
    return compiled(tmp_path_factory.mktemp("kernel"))


@settings(max_examples=examples(20))
@given(
    batch=st.integers(1, 2), tokens=st.integers(1, 70), heads=st.integers(1, 2),
    head_dim=st.sampled_from([64, 128]), slots=st.integers(1, 140), valid=st.integers(-1, 150),
    dtype=st.sampled_from(DTYPES), seed=st.integers(0, 99),
    peak=st.sampled_from([0.0, 1.0, 30.0]), size=st.sampled_from([1e-4, 1.0, 1e4]),
)  # fmt: skip
def test_matches_attention_to_the_valid_slots(
    attend, batch, tokens, heads, head_dim, slots, valid, dtype, seed, peak, size
):
    held(attend, arguments(
        batch, tokens, heads, head_dim, slots, valid, dtype, seed, peak, size
    ))  # fmt: skip


@both
@pytest.mark.parametrize("valid", [1, 15, 64, 65, 139])
def test_invalid_slots_do_not_affect_the_output(attend, dtype, valid):
    taken = arguments(1, 5, 1, 64, 140, valid, dtype)
    wanted = attend(*taken.values())
    for ring in ("key_cache", "value_cache"):
        taken[ring][:, valid:] = torch.nan
    assert torch.equal(attend(*taken.values()), wanted)


@both
@pytest.mark.parametrize(("said", "meant"), [(0, 1), (-(2**40), 1), (91, 90), (2**40, 90)])
def test_valid_length_is_clamped(attend, dtype, said, meant):
    taken = arguments(1, 5, 1, 64, 90, said, dtype)
    wanted = attend(*(taken | {"valid_length": torch.tensor([meant])}).values())
    assert torch.equal(attend(*taken.values()), wanted)


@both
def test_value_with_all_weight_is_returned_exactly(attend, dtype):
    """Each query sees one of 64 keys."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    numbers = torch.where(torch.isfinite(numbers), numbers, 0).view(1, 64, 16, 64)
    one_hot = torch.eye(64, dtype=dtype)[None, :, None].expand(1, 64, 16, 64).contiguous()
    taken = (1e3 * one_hot, one_hot, numbers, torch.tensor([64]))
    assert torch.equal(attend(*taken), numbers)


def test_largest_values_do_not_overflow(attend):
    """All weights but one are rounded up: a sum of unrounded weights would give infinity."""
    taken = arguments(1, 5, 1, 64, 128, 128, torch.float16)
    logit = 8 * torch.tensor(0.5 + 0.6 * 2**-11, dtype=torch.float64).log()
    taken["query"].fill_(1)
    taken["key_cache"].zero_()
    taken["key_cache"][:, 1:, :, 0] = logit
    taken["key_cache"][:, 1:, :, 1] = logit - logit.half()
    taken["value_cache"].fill_(65504)
    assert torch.equal(attend(*taken.values()), torch.full_like(taken["query"], 65504))


@both
def test_logits_beyond_float16_take_all_weight(attend, dtype):
    """Products of the largest float16 numbers are 65,000 times as large."""
    taken = arguments(1, 20, 2, 64, 140, 140, dtype)
    size = 6e4 if dtype is torch.float16 else 1e16
    taken["query"].fill_(size)
    taken["key_cache"].fill_(-size)
    taken["key_cache"][:, 77] = size
    wanted = taken["value_cache"][:, 77:78].expand(-1, 20, -1, -1)
    assert torch.equal(attend(*taken.values()), wanted)


@both
def test_later_large_logit_outweighs_earlier_keys(attend, dtype):
    taken = arguments(1, 20, 1, 128, 140, 140, dtype, peak=4)
    taken["key_cache"][:, 128:] *= 8
    held(attend, taken)


@both
def test_zero_queries_return_the_mean_of_valid_values(attend, dtype):
    held(attend, arguments(1, 5, 2, 64, 100, 83, dtype, peak=0))


@both
@pytest.mark.parametrize(
    ("argument", "at", "count"),
    [
        ("query", (0, 2, 1, 5), 64),
        ("key_cache", (0, 3, 1, 5), 320),
        ("value_cache", (0, 3, 1, 5), 5),
    ],
)
def test_nan_reaches_its_outputs(attend, dtype, argument, at, count):
    """NaN reaches a query's head, a head, or a channel of every query, as in the reference."""
    taken = arguments(dtype=dtype)
    taken[argument][at] = torch.nan
    for form in (attend, ring_attention_16bit):
        assert int(form(*taken.values()).isnan().sum()) == count


def test_bfloat16_product_without_matrix_units(tmp_path):
    """As it is on sm_75, by the kernel's own source."""
    attend = compiled(tmp_path, "-DWITHOUT_BF16_UNITS")
    held(attend, arguments(1, 20, 1, 64, 70, 67, torch.bfloat16))
    held(attend, arguments(1, 5, 1, 64, 9, 9, torch.bfloat16, size=1e30))
