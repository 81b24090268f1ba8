"""Attention over a ring of 8 bits as an operator, held to what its kernel is held to."""

import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import attention_layer
import held
import pytest
import torch
from attention_8bit.checks import (
    Problem,
    first_wrong,
    problem,
    relative,
    rounded_apart,
    rounding,
)
from attention_8bit.emulation import emulate
from captured import captured
from operators import FP8, on
from operators_8bit import attention_arguments
from portable_attention import OF_WEIGHTS

from vidc.compiler.backends.aoti.inductor import compile_package
from vidc.plugins.arguments import dtype_name
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.transposed_values import stored_at

CUDA = torch.device("cuda", 0)
HOPPER = (9, 0)
FORMATS = (FP8, torch.int8)
NEAR = 0.006


def attend(
    at: Problem, valid: torch.Tensor, dtype: torch.dtype = torch.bfloat16, output_scale=None
) -> torch.Tensor:
    return ring_attention_8bit(
        at.query, at.query_scale, at.ring.key, at.ring.value, at.scales.key_scale,
        at.scales.value_scale, at.scales.value_mean, valid, dtype_name(dtype), output_scale,
    )  # fmt: skip


def length(valid: int) -> torch.Tensor:
    return torch.tensor([valid], device=CUDA)


@pytest.fixture(scope="module")
def kernel(hopper, library) -> torch.device:
    """The GPU, where it is the one that the kernel is for, and the library has it."""
    return library


@pytest.mark.parametrize("of", FORMATS, ids=str)
@pytest.mark.parametrize(
    ("queries", "slots", "heads", "head_dim", "batch"),
    [(1, 300, 1, 128, 1), (140, 500, 3, 64, 2), (300, 4680, 3, 128, 1), (4680, 1500, 1, 64, 1)],
)
def test_matches_its_emulation(kernel, of, queries, slots, heads, head_dim, batch):
    at = problem(queries, slots, heads, head_dim, batch, CUDA, of)
    for valid in (1, 127, 129, slots - 3, slots):
        wanted = emulate(at.query, at.query_scale, at.ring, at.scales, valid)
        besides = rounding(at, valid)
        for dtype in (torch.bfloat16, torch.float16):
            found = attend(at.spoiled(valid), length(valid), dtype)
            assert found.dtype is dtype
            assert relative(found, wanted) < NEAR + rounded_apart(wanted, besides, few=True)
            assert first_wrong(found, wanted, besides) is None, (valid, dtype)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_values_with_a_mean_are_summed_over_all_keys(kernel, of):
    """Twelve heads fill the GPU: with fewer tiles, the kernel sums the keys of a tile in parts."""
    at = problem(4680, 18720, 12, 128, 1, CUDA, of).even()
    found = attend(at, length(18720), torch.float16)[:, :192]
    few = at.first_queries(192)
    wanted = emulate(few.query, few.query_scale, few.ring, few.scales, 18720)
    assert relative(found, wanted) < 0.001


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_an_output_in_fp8_is_divided_by_the_scale_on_the_gpu(kernel, of):
    at = problem(300, 500, 3, 128, 1, CUDA, of)
    scale = torch.tensor([0.02], device=CUDA)
    found = attend(at, length(470), FP8, scale).float()
    wanted = (attend(at, length(470), torch.float16).float() / scale).clamp(-448, 448)
    assert ((found - wanted).abs() <= 2.0**-4 * wanted.abs() * 1.01 + 2.0**-10).all()


@pytest.mark.parametrize("rows", [18720, 18816])
def test_rows_of_values_need_no_padding(kernel, rows):
    """The ring write's are as long as the ring, those of benchmarks a multiple of 128."""
    at = problem(140, 18720, 2, 128, 1, CUDA, FP8)
    taken = attention_arguments(1, 140, 2, 128, 18720, rows)
    taken |= {
        "query": at.query, "query_scale": at.query_scale, "key_cache": at.ring.key,
        "value_cache": at.ring.value.view(torch.int8)[..., :rows].contiguous().view(FP8),
        "key_scale": at.scales.key_scale, "value_scale": at.scales.value_scale,
        "value_mean": at.scales.value_mean, "valid_length": length(18720),
    }  # fmt: skip
    assert torch.equal(ring_attention_8bit(*taken.values()), attend(at, length(18720)))


@pytest.mark.parametrize("of", FORMATS, ids=str)
@pytest.mark.parametrize("valid", [243, 486, 971, 972])
def test_padding_of_the_demos_ring_does_not_affect_the_output(kernel, of, valid):
    """Its 972 slots are stored in 976; the last four hold the largest number."""
    at = problem(243, 972, 4, 64, 1, CUDA, of)
    found = []
    for content in (0, 0x7E):
        values = at.ring.value.view(torch.uint8)[..., :976].contiguous()
        values[..., stored_at(torch.arange(972, 976, device=CUDA))] = content
        padded = replace(at, ring=replace(at.ring, value=values.view(of)))
        found.append(attend(padded, length(valid)))
    assert torch.equal(*found)
    wanted = emulate(at.query, at.query_scale, at.ring, at.scales, valid)
    besides = rounding(at, valid)
    assert relative(found[0], wanted) < NEAR + rounded_apart(wanted, besides, few=True)
    assert first_wrong(found[0], wanted, besides) is None


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_one_graph_serves_every_length_and_other_scales(kernel, of):
    at = problem(140, 500, 3, 64, 2, CUDA, of)
    valid = length(500)
    graph, found = captured(lambda: attend(at, valid))
    for slots in (1, 128, 130, 333, 500, 0, -5, 501, 2**40):
        at.scales.key_scale.mul_(0.9)
        at.query_scale.mul_(1.05)
        valid.fill_(slots)
        wanted = attend(at, valid)
        found.fill_(torch.nan)
        graph.replay()
        assert torch.equal(found, wanted), slots
        clamped = attend(at, length(min(max(slots, 1), 500)))
        assert torch.equal(wanted, clamped), slots


def test_the_first_run_may_be_captured(kernel):
    """Runs in a new process, before any other kernel."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(attention_layer.__file__).parent)!r})
import torch
from operators import on
from operators_8bit import attention_arguments
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
given = on(torch.device("cuda"), attention_arguments())
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    output = ring_attention_8bit(*given.values())
graph.replay()
assert output.abs().max() > 0
assert torch.equal(output, ring_attention_8bit(*given.values()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@contextmanager
def new_memory_filled():
    """PyTorch fills what it allocates: the operator's output with NaN, its workspace with 127.

    Memory that was filled and freed before need not be what the operator gets.
    """
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_every_element_is_written_and_the_same_each_time(kernel, of):
    """Wherever the memory it works in held something else, and beside another run of it."""
    given = on(CUDA, attention_arguments(2, 300, 3, 128, 500, 512, 490, of=of))
    wanted = ring_attention_8bit(*given.values())
    assert torch.isfinite(wanted).all()
    with new_memory_filled():
        assert given["query"].new_empty(wanted.shape, dtype=wanted.dtype).isnan().all()
        assert given["query"].new_empty(2**24, dtype=torch.int8).eq(127).all()
        assert torch.equal(ring_attention_8bit(*given.values()), wanted)
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    found = []
    for _ in range(10):
        for stream in streams:
            with torch.cuda.stream(stream):
                found.append(ring_attention_8bit(*given.values()))
    torch.cuda.synchronize()
    assert all(torch.equal(each, wanted) for each in found)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_passes_opcheck(kernel, of):
    given = on(CUDA, attention_arguments(of=of))
    checks = ["test_autograd_registration", "test_faketensor"]
    if of is torch.int8:
        checks += ["test_schema", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(ring_attention_8bit, tuple(given.values()), test_utils=checks)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_attends_to_the_ring_of_the_ring_write(kernel, of):
    """As its reference does: the same numbers, but for one in thousands that rounds otherwise."""
    layer = attention_layer.AttentionLayer()
    (found,) = layer(*attention_layer.arguments(CUDA, of))
    (wanted,) = layer(*attention_layer.arguments(torch.device("cpu"), of))
    # Weights in 8 bits: flat ones in FP8 add their own 2.5 %.
    assert relative(found.cpu(), wanted) < (0.04 if of is FP8 else 0.02)


def test_aotinductor_calls_it_in_a_captured_graph(kernel, tmp_path):
    layer = attention_layer.AttentionLayer()
    program = torch.export.export(layer, tuple(attention_layer.arguments(CUDA)))
    compile_package(program, tmp_path / "layer.pt2")
    engine = torch._C._aoti.AOTIModelPackageLoader(
        str(tmp_path / "layer.pt2"), "model", True, 1, CUDA.index
    )
    attention_layer.same_as_eager(lambda *given: engine.boxed_run(list(given)), CUDA)

    given, other = attention_layer.arguments(CUDA), attention_layer.arguments(CUDA)
    graph, results = captured(lambda: engine.boxed_run(list(given)))
    for tensor, fresh in zip(given, attention_layer.arguments(CUDA), strict=True):
        tensor.copy_(fresh)
    graph.replay()
    for a, b in zip((*results, *given), (*layer(*other), *other), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("of", FORMATS, ids=str)
def test_another_gpu_than_hopper_has_the_portable_kernel(library, of):
    if torch.cuda.get_device_capability(CUDA) == HOPPER:
        pytest.skip("the GPU is a Hopper, which has a kernel of its own")
    taken = attention_arguments(2, 300, 3, 128, 500, 512, 490, of=of)
    held.attention(taken, CUDA, slack=OF_WEIGHTS)


@pytest.mark.parametrize("elsewhere", ["key_cache", "value_mean", "valid_length"])
def test_tensors_of_two_devices_are_refused(library, elsewhere):
    taken = attention_arguments()
    given = on(CUDA, taken) | {elsewhere: taken[elsewhere]}
    with pytest.raises(RuntimeError, match=f"{elsewhere}: expected query's device cuda:0, found"):
        ring_attention_8bit(*given.values())
