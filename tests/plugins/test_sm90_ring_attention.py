"""The attention kernel's own source on a CPU, with what is Hopper's about it replaced.

Its threads, barriers, indices and the parts of tiles are the real ones. Copies happen as early or
as late as they may and products as late, so that what is given away or used too soon shows.
"""

import ctypes
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attention_8bit.checks import (
    ASKED,
    Problem,
    check_products,
    check_single_keys,
    exact,
    first_wrong,
    problem,
    relative,
    rounded_apart,
    rounding,
)
from attention_8bit.emulation import emulate
from attention_8bit.kernel import FORMATS, OUTPUT_TYPES, Arguments
from attention_8bit.ring import Ring8Bit

from vidc import plugins
from vidc.plugins.transposed_values import stored_at

CUDA = Path(next(iter(plugins.__path__))) / "cuda"
SUPPORT = Path(__file__).parents[1] / "support" / "cuda_on_cpu"
REAL = (*CUDA.glob("sm90_ring_*.*h"), *CUDA.glob("ring_*.*h"), CUDA / "stream_k.cuh")
SLOTS = 500
ROWS = 64
GROUPS = {torch.int8: 2, torch.float8_e4m3fn: 3}
"""Warpgroups that compute, each with ``ROWS`` queries of a tile."""
GARBAGE = 0x7F
NEAR = 0.003


@pytest.fixture(scope="module", params=["early copies", "late copies"])
def library(request, tmp_path_factory):
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("kernel")
    for file in (*SUPPORT.iterdir(), *REAL):
        shutil.copy(file, folder)
    flags = ["-std=c++17", "-O2", "-shared", "-fPIC", "-I."]
    command = [compiler, *flags, "ring_attention.cpp", "-o", "kernel.so"]
    subprocess.run(command, cwd=folder, check=True, timeout=300)
    simulate = ctypes.CDLL(str(folder / "kernel.so")).simulate
    return lambda arguments: simulate(ctypes.byref(arguments), request.param == "late copies")


class Simulation:
    """Keeps its workspace from one launch to the next, as the kernel has to be able to."""

    def __init__(self, library):
        self.library = library
        self.workspace = None

    def run(self, at, valid_length, ctas, dtype=torch.bfloat16, products=None, output_scale=None):
        batch, tokens, heads, head_dim = at.query.shape
        groups = GROUPS[at.query.dtype]
        counters = groups * batch * heads * -(-tokens // (groups * ROWS))
        if self.workspace is None:
            parts = 2 * ctas * groups * ROWS * (head_dim + 8)
            self.workspace = torch.full((counters + 4 + parts,), torch.nan)
            self.workspace[:counters] = 0
        output = torch.empty(at.query.shape, dtype=dtype)
        output.view(torch.uint8).fill_(GARBAGE)
        length = torch.tensor([valid_length])
        arguments = Arguments(
            *(tensor.data_ptr() for tensor in (
                at.query, at.query_scale, at.ring.key, at.scales.key_scale, at.ring.value,
                at.scales.value_scale, at.scales.value_mean, length,
            )),
            None if output_scale is None else output_scale.data_ptr(),
            output.data_ptr(), self.workspace.data_ptr(),
            None if products is None else products.data_ptr(),
            batch, tokens, at.ring.key.shape[1], at.ring.value.shape[3], heads, head_dim,
            FORMATS[at.query.dtype], OUTPUT_TYPES[dtype], ctas,
        )  # fmt: skip
        assert self.library(arguments) == 0, "the threads block each other"
        assert self.workspace[:counters].eq(0).all()
        return output


@pytest.fixture(params=FORMATS, ids=str)
def inputs(request):
    def make(queries, heads, head_dim, batch=1):
        device = torch.device("cpu")
        return problem(queries, SLOTS, heads, head_dim, batch, device, request.param)

    return make


def check(library, at, valid_length, ctas):
    found = Simulation(library).run(at.spoiled(valid_length), valid_length, ctas)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, valid_length)
    besides = rounding(at, valid_length)
    assert first_wrong(found, wanted, besides) is None
    assert relative(found, wanted) < NEAR + rounded_apart(wanted, besides, few=True)


@pytest.mark.parametrize("head_dim", [64, 128])
def test_whole_tiles(library, inputs, head_dim):
    check(library, inputs(140, 1, head_dim), 300, ctas=2)


@pytest.mark.parametrize("valid_length", [1, 127, 128, 129, 255, 257, 497, 500])
def test_any_length(library, inputs, valid_length):
    check(library, inputs(3, 1, 64), valid_length, ctas=1)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_ring_may_end_within_a_group_of_slots(library, of):
    """172 slots are stored in rows of 176, shorter than a tile of 128 more."""
    at = problem(3, 172, 1, 64, 1, torch.device("cpu"), of)
    values = at.ring.value.view(torch.uint8)[..., :176].contiguous()
    values[..., stored_at(torch.arange(172, 176))] = 0x7E
    padded = replace(at, ring=replace(at.ring, value=values.view(of)))
    found = Simulation(library).run(padded, 172, ctas=1)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, 172)
    besides = rounding(at, 172)
    assert first_wrong(found, wanted, besides) is None
    assert relative(found, wanted) < NEAR + rounded_apart(wanted, besides, few=True)


@pytest.mark.parametrize(
    ("queries", "heads", "batch", "ctas"),
    [(1, 1, 1, 3), (130, 3, 1, 4), (70, 1, 2, 5), (1, 2, 2, 1), (129, 1, 1, 11), (64, 3, 1, 2)],
)
def test_tiles_in_parts(library, inputs, queries, heads, batch, ctas):
    check(library, inputs(queries, heads, 64, batch), 470, ctas)


def test_many_short_tiles_for_one_block(library, inputs):
    check(library, inputs(3, 5, 64, batch=2), 100, ctas=1)


def test_parts_of_a_large_head(library, inputs):
    check(library, inputs(100, 3, 128), 500, ctas=2)


def test_error_against_float64_is_within_the_limit(library, inputs):
    at = inputs(100, 2, 128)
    for valid_length in (250, 500):
        found = Simulation(library).run(at.spoiled(valid_length), valid_length, ctas=3)
        assert relative(found, exact(at.inputs, valid_length)) < ASKED


def test_workspace_can_be_reused(library, inputs):
    at = inputs(20, 1, 64)
    simulation = Simulation(library)
    first = [simulation.run(at, length, ctas=3) for length in (500, 129, 300)]
    again = [simulation.run(at, length, ctas=3) for length in (500, 129, 300)]
    for length, a, b in zip((500, 129, 300), first, again, strict=True):
        assert torch.equal(a, b)
        wanted = emulate(at.query, at.query_scale, at.ring, at.scales, length)
        besides = rounding(at, length)
        assert relative(a, wanted) < NEAR + rounded_apart(wanted, besides, few=True)


@pytest.mark.parametrize("of", FORMATS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_values_with_a_mean_are_summed_over_all_keys(library, of, head_dim):
    """A single sum in the matrix units would drop most of each product."""
    at = problem(3, 4000, 1, head_dim, 1, torch.device("cpu"), of).even()
    found = Simulation(library).run(at, 4000, ctas=1, dtype=torch.float16)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, 4000)
    assert relative(found, wanted) < 0.001


def test_large_logit_moves_the_reference(library, inputs):
    at = inputs(20, 1, 64)
    # Maxima of the blocks are then hundreds of powers of 2 apart.
    at.query_scale.mul_(60)
    found = Simulation(library).run(at, 500, ctas=2)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, 500)
    assert relative(found, wanted) < NEAR + rounded_apart(wanted, rounding(at, 500), few=True)


@pytest.mark.parametrize("place", [0, 15, 16, 31])
@pytest.mark.parametrize("sign", [-1, 1])
def test_finds_a_larger_logit_anywhere_in_a_block(library, inputs, sign, place):
    """One key in 32 has logits of its own, which rise from block to block; all have one sign."""
    at = inputs(20, 1, 64)
    at.query.copy_(torch.full_like(at.query, sign))
    size = torch.full((SLOTS,), 60.0 if sign < 0 else 10.0)
    rising = torch.linspace(40, 10, 16) if sign < 0 else torch.linspace(20, 60, 16)
    size[place::32] = rising[: len(size[place::32])]
    at.ring.key.copy_(size[None, :, None, None].expand(at.ring.key.shape))
    at.query_scale.fill_(0.1)
    at.scales.key_scale.fill_(1.0)
    found = Simulation(library).run(at, SLOTS, ctas=1)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, SLOTS)
    assert relative(found, wanted) < NEAR + rounded_apart(wanted, rounding(at, SLOTS), few=True)


def test_zero_queries_return_the_mean_of_valid_values(library, inputs):
    at = inputs(5, 1, 64)
    at.query.zero_()
    at.query_scale.zero_()
    found = Simulation(library).run(at.spoiled(200), 200, ctas=1, dtype=torch.float16)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, 200)
    assert relative(found, wanted) < 0.001
    mean = at.inputs.value[:, :200].mean(dim=1, keepdim=True).expand_as(wanted)
    assert relative(found, mean) < 0.03


def test_fp8_output_is_divided_by_its_scale(library, inputs):
    at = inputs(130, 2, 64)
    scale = torch.tensor([0.02])
    found = Simulation(library).run(
        at, 300, ctas=3, dtype=torch.float8_e4m3fn, output_scale=scale
    )  # fmt: skip
    again = Simulation(library).run(at, 300, ctas=3, dtype=torch.float16).float()
    wanted = (again / scale).clamp(-448, 448)
    assert wanted.abs().max() > 40
    # A step of E4M3, for those that were rounded to fp16 before.
    assert ((found.float() - wanted).abs() <= 2.0**-4 * wanted.abs() * 1.01 + 2.0**-10).all()


@pytest.mark.parametrize(
    ("part", "slot"), [("query", 0), ("key", 3), ("key", 20), ("key", 499), ("value", 3)]
)
def test_nan_in_fp8_reaches_its_outputs(library, part, slot):
    """NaN reaches a query's head, a head, or a channel of every query; INT8 has no NaN."""
    at = problem(5, SLOTS, 2, 64, 1, torch.device("cpu"), torch.float8_e4m3fn)
    numbers, where, counts = {
        "query": (at.query, (0, 2, 1, 5), (0, 2, 1)),
        "key": (at.ring.key, (0, slot, 1, 5), (0, slice(None), 1)),
        "value": (at.ring.value, (0, 1, 5, slot), (0, slice(None), 1, 5)),
    }[part]
    numbers.view(torch.uint8)[where] = GARBAGE
    found = Simulation(library).run(at, SLOTS, ctas=1)
    assert torch.equal(found.isnan(), only(found, counts))


@pytest.mark.parametrize("ctas", [1, 3])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("part", ["query", "key", "value", "mean"])
def test_nan_scale_or_mean_reaches_its_outputs(library, part, dtype, ctas):
    at = problem(5, SLOTS, 2, 64, 1, torch.device("cpu"), dtype)
    numbers, where, counts = {
        "query": (at.query_scale, (0, 1, 2), (0, 2, 1)),
        "key": (at.scales.key_scale, (1,), (0, slice(None), 1)),
        "value": (at.scales.value_scale, (1, 5), (0, slice(None), 1, 5)),
        "mean": (at.scales.value_mean, (1, 5), (0, slice(None), 1, 5)),
    }[part]
    numbers[where] = torch.nan
    found = Simulation(library).run(at, SLOTS, ctas=ctas)
    assert torch.equal(found.isnan(), only(found, counts))


def only(found, where):
    """True there, and nowhere else."""
    wanted = torch.zeros(found.shape, dtype=torch.bool)
    wanted[where] = True
    return wanted


@pytest.mark.parametrize("rows", [304, 320, 512])
def test_value_rows_have_any_multiple_of_16_slots(library, inputs, rows):
    at = inputs(70, 2, 64)
    keys = Ring8Bit(at.ring.key[:, :300].contiguous(), at.ring.value[..., :rows].contiguous())
    short = Problem(at.inputs, at.query, at.query_scale, keys, at.scales)
    found = Simulation(library).run(short, 300, ctas=2)
    assert torch.equal(found, Simulation(library).run(at, 300, ctas=2))


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("head_dim", [64, 128])
def test_each_query_can_select_its_own_key(library, dtype, head_dim):
    def attend(query, query_scale, ring, scales, valid_length):
        at = Problem(None, query, query_scale, ring, scales)
        return Simulation(library).run(at, int(valid_length), ctas=2)

    assert list(check_single_keys(attend, head_dim, torch.device("cpu"), dtype)) == []


def test_products_of_the_first_tile_are_returned(library, inputs):
    def attend(query, query_scale, ring, scales, valid_length, products):
        at = Problem(None, query, query_scale, ring, scales)
        return Simulation(library).run(at, int(valid_length), ctas=1, products=products)

    assert list(check_products(attend, inputs(100, 1, 128))) == []
