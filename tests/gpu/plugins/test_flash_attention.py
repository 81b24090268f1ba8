"""The attention kernel against attention in float32, on the GPU that it was compiled for."""

import subprocess
import sys

import pytest
import torch
from captured import captured

from vidc.plugins.errors import UnavailableError
from vidc.plugins.ops.flash_attention import flash_attention_sm90, load_kernel
from vidc.plugins.ops.key_split import split_from

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
ROW_ERROR = {torch.bfloat16: 2e-2, torch.float16: 2.5e-3}
"""Limit of the relative L2 error per query and head; a wrong tile gives errors of 1."""
TOTAL_ERROR = {torch.bfloat16: 5e-3, torch.float16: 1e-3}
"""Limits of twice the rounding error of probabilities and output."""
CASES = [("bfloat16", 128), ("bfloat16", 64), ("float16", 128), ("float16", 64)]
SLOTS = 700
LENGTHS = (1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 255, 257, 500, 699, SLOTS)


@pytest.fixture
def load(attention_cubin):
    def load(dtype, head_dim):
        load_kernel(attention_cubin(dtype, head_dim))
        return DTYPES[dtype]

    return load


def tensors(dtype, head_dim, batch=1, tokens=300, slots=SLOTS, heads=5, seed=1):
    generator = torch.Generator("cuda").manual_seed(seed)

    def draw(rows):
        shape = (batch, rows, heads, head_dim)
        return torch.randn(shape, device="cuda", dtype=dtype, generator=generator)

    return draw(tokens), draw(slots), draw(slots)


def at(length):
    return torch.tensor([length], device="cuda")


def expected(query, key, value, length):
    """Attention in float32, a part of the queries at a time."""
    keys, values = (t[:, :length].float().transpose(1, 2) for t in (key, value))
    parts = []
    for part in query.float().transpose(1, 2).split(512, dim=2):
        logits = part @ keys.transpose(2, 3) / query.shape[3] ** 0.5
        parts.append(torch.softmax(logits, -1) @ values)
    return torch.cat(parts, 2).transpose(1, 2)


def close(output, wanted):
    difference = output.float() - wanted
    rows = difference.norm(dim=3) / wanted.norm(dim=3)
    assert rows.max().item() <= ROW_ERROR[output.dtype]
    assert (difference.norm() / wanted.norm()).item() <= TOTAL_ERROR[output.dtype]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("dtype", "head_dim"), CASES)
def test_matches_attention_to_the_valid_slots(load, dtype, head_dim, batch):
    query, key, value = tensors(load(dtype, head_dim), head_dim, batch)
    for length in LENGTHS:
        close(
            flash_attention_sm90(query, key, value, at(length)),
            expected(query, key, value, length),
        )


@pytest.mark.parametrize("tokens", [1, 63, 127, 128, 129, 191, 192, 193, 385])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_any_number_of_queries(load, head_dim, tokens):
    query, key, value = tensors(load("bfloat16", head_dim), head_dim, 2, tokens, heads=3)
    output = flash_attention_sm90(query, key, value, at(321))
    assert output.shape == query.shape
    close(output, expected(query, key, value, 321))


@pytest.mark.parametrize("length", [4680, 9360, 14040, 18720])
def test_at_the_sizes_of_longlive(load, length):
    query, key, value = tensors(load("bfloat16", 128), 128, tokens=4680, slots=18720, heads=12)
    output = flash_attention_sm90(query, key, value, at(length))
    close(output, expected(query, key, value, length))


@pytest.mark.parametrize("length", [1, 4680, 9359, 9360, 9361, 14040, 18719, 18720])
@pytest.mark.parametrize(
    ("batch", "tokens", "heads"), [(1, 4680, 12), (1, 200, 3), (1, 9000, 4), (2, 3100, 3)]
)
def test_keys_in_two_halves(load, length, batch, tokens, heads):
    """The last tiles of queries are few enough for it on 132 multiprocessors."""
    dtype = load("bfloat16", 128)
    assert split_from(-(-tokens // 128), batch * heads, 18720, 132) < -(-tokens // 128)
    query, key, value = tensors(dtype, 128, batch, tokens, slots=18720, heads=heads)
    output = flash_attention_sm90(query, key, value, at(length))
    close(output, expected(query, key, value, length))
    assert torch.equal(output, flash_attention_sm90(query, key, value, at(length)))


def test_one_graph_serves_every_length_of_halves(load):
    query, key, value = tensors(load("bfloat16", 128), 128, tokens=4680, slots=18720, heads=12)
    length = at(18720)
    graph, output = captured(lambda: flash_attention_sm90(query, key, value, length))
    for valid in (1, 9360, 9361, 18720, 4680):
        length.fill_(valid)
        output.fill_(torch.nan)
        graph.replay()
        close(output, expected(query, key, value, valid))


def test_large_logits(load):
    query, key, value = tensors(load("bfloat16", 128), 128)
    query *= 30
    output = flash_attention_sm90(query, key, value, at(600))
    assert output.isfinite().all()
    close(output, expected(query, key, value, 600))


def test_every_element_of_the_output_is_written(load):
    query, key, value = tensors(load("bfloat16", 128), 128, 2)
    length = at(650)
    flash_attention_sm90(query, key, value, length)
    poison = torch.full_like(query, torch.nan)
    address = poison.data_ptr()
    del poison
    output = flash_attention_sm90(query, key, value, length)
    assert output.data_ptr() == address, "the output is not where the poison was"
    close(output, expected(query, key, value, 650))


@pytest.mark.parametrize("length", [1, 100, 128, 500])
def test_invalid_slots_do_not_affect_the_output(load, length):
    query, key, value = tensors(load("bfloat16", 128), 128, 2)
    outputs = []
    for beyond in (0.0, 3e4):
        key[:, length:] = value[:, length:] = beyond
        outputs.append(flash_attention_sm90(query, key, value, at(length)))
    assert torch.equal(*outputs)


def test_one_graph_serves_every_length(load):
    query, key, value = tensors(load("bfloat16", 128), 128, 2)
    length = at(SLOTS)
    graph, output = captured(lambda: flash_attention_sm90(query, key, value, length))
    for valid in (*LENGTHS, *reversed(LENGTHS)):
        length.fill_(valid)
        output.fill_(torch.nan)
        graph.replay()
        close(output, expected(query, key, value, valid))
        once = output.clone()
        graph.replay()
        assert torch.equal(output, once)


def test_the_first_run_may_be_captured(attention_cubin):
    """Runs in a new process, before any other kernel."""
    code = f"""
import torch
from pathlib import Path
from vidc.plugins.ops.flash_attention import flash_attention_sm90, load_kernel
load_kernel(Path({str(attention_cubin("float16", 64))!r}))
query = torch.randn(1, 200, 3, 64, device="cuda", dtype=torch.float16)
length = torch.tensor([150], device="cuda")
length.expand(1).to(torch.int32)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    output = flash_attention_sm90(query, query, query, length)
graph.replay()
again = flash_attention_sm90(query, query, query, length)
assert again.abs().max() > 0
assert torch.equal(output, again)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_runs_on_torchs_current_stream(load):
    query, key, value = tensors(load("bfloat16", 128), 128)
    wanted = flash_attention_sm90(query, key, value, at(SLOTS))
    length = at(1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # Cycles: 50 ms in which another stream would be done.
        length.fill_(SLOTS)
        output = flash_attention_sm90(query, key, value, length)
    stream.synchronize()
    assert torch.equal(output, wanted)


def test_tensors_elsewhere_are_refused(load):
    arguments = [t.cpu() for t in (*tensors(load("bfloat16", 128), 128), at(1))]
    with pytest.raises(UnavailableError, match=r"bfloat16 x 128 on cuda:0.*on cpu") as caught:
        flash_attention_sm90(*arguments)
    assert caught.value.code == "VIDC-KERNEL-MISSING"
