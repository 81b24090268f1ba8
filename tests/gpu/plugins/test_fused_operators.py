"""The fused operators' kernels, held to what their references are held to."""

import subprocess
import sys
from pathlib import Path

import held
import layer
import pytest
import torch
from captured import captured
from operators import (
    FLOATS,
    FP8,
    frame_arguments,
    gelu_arguments,
    group_norm_arguments,
    on,
    sampler_arguments,
    winograd_arguments,
)
from refusal_matrix import KINDS, MEMORY
from refusals import HOPPER, OPERATORS, REFUSALS
from tensors import bits

from vidc.compiler.backends.aoti.inductor import compile_package
from vidc.plugins.arguments import dtype_name
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.norm_silu_winograd import CHANNELS
from vidc.plugins.ops.sampler_step import sampler_step
from vidc.plugins.ops.winograd_tiles import TILES

pytestmark = pytest.mark.usefixtures("library")
CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("output", [*FLOATS, FP8])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu_quantize(dtype, output):
    for width in (8, 2048, 2056, 8960):
        for deviation in (1e-3, 1.0, 30.0):
            for centered in {False, output is FP8}:
                taken = gelu_arguments(2, 3, width, dtype, output, 1, deviation, centered)
                held.gelu(taken, CUDA)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("channels", CHANNELS)
def test_norm_silu_winograd(channels, tile):
    for height, width in ((1, 1), (5, 7), (60, 104)):
        for batch, tiles in ((1, 1), (2, 3)):
            for residual in (False, True):
                for products in {True, residual}:
                    held.winograd(
                        winograd_arguments(
                            batch, tiles, height, width, channels, products, residual=residual,
                            tile=tile,
                        ),
                        CUDA,
                    )  # fmt: skip


@pytest.mark.parametrize("keep_sum", [False, True])
def test_norm_silu_winograd_at_the_size_of_longlive(keep_sum):
    taken = winograd_arguments(1, 3, 480, 832, 96, residual=True, tile=4, keep_sum=keep_sum)
    held.winograd(taken, CUDA)


HALVES = (torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", HALVES)
def test_gelu_quantize_at_the_size_of_longlive(dtype):
    held.gelu(gelu_arguments(1, 4680, 8960, dtype, FP8, centered=True), CUDA)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("silu", [False, True])
def test_group_norm_silu(dtype, silu):
    for channels, groups in ((24, 3), (32, 32), (128, 32), (320, 32), (512, 256), (2560, 32)):
        for images, pixels in ((1, 1), (3, 45), (28, 144), (2, 5000), (1100, 3)):
            for shifted, spread in ((False, (1.0, 30.0)), (True, (100.0, 0.0))):
                taken = group_norm_arguments(
                    images, pixels, channels, groups, dtype, shifted, silu, 1, *spread
                )
                held.group_norm(taken, CUDA)


@pytest.mark.parametrize(("images", "pixels", "channels"), [(28, 9216, 320), (2, 129024, 320)])
def test_group_norm_silu_at_the_size_of_svd(images, pixels, channels):
    held.group_norm(group_norm_arguments(images, pixels, channels, 32), CUDA)


@pytest.mark.parametrize("dtype", HALVES)
def test_temporal_attention(dtype):
    for frames in (1, 2, 14, 15, 16, 17, 25, 31, 32):
        for batch, pixels, heads in ((1, 1, 1), (2, 3, 5), (7, 1, 3), (1, 130, 2)):
            for deviation in (1e-2, 1.0, 10.0):
                taken = frame_arguments(batch, frames, pixels, heads, dtype, 1, deviation)
                held.frames(taken, CUDA)


@pytest.mark.parametrize("frames", [14, 25])
def test_temporal_attention_at_the_size_of_svd(frames):
    held.frames(frame_arguments(2304, frames, 1, 10), CUDA)
    held.frames(frame_arguments(1, frames, 2304, 10), CUDA)


@pytest.mark.parametrize("predictions", [1, 2])
@pytest.mark.parametrize("fresh", [False, True])
def test_sampler_step(predictions, fresh):
    for frames, size in ((1, (4, 1, 1)), (3, (4, 5, 7)), (25, (4, 72, 128))):
        for step in range(4):
            held.sampler(sampler_arguments(predictions, frames, size, 4, step, fresh), CUDA)


@pytest.mark.parametrize("step", [-1, 4, 2**40])
def test_sampler_step_outside_the_table_writes_nothing(step):
    taken = sampler_arguments(frames=2, size=(4, 20, 30), step=step)
    _, after = held.run(sampler_step, taken, CUDA)
    for name, value in taken.items():
        assert value is None or torch.equal(after[name], value), name


def test_one_graph_takes_every_step():
    """The kernel counts its steps; a table's last one leads back to the first."""
    taken = sampler_arguments(frames=14, size=(4, 72, 128), steps=5, step=0, fresh=True)
    given, wanted = on(CUDA, taken), on(CUDA, taken)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sampler_step(*given.values())
    for step in range(1, 12):
        graph.replay()
        sampler_step(*wanted.values())
        assert given["progress"].tolist() == [step % 5, 0]
        for name in ("latent", "sample", "timestep"):
            assert torch.equal(given[name], wanted[name]), (step, name)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu_at_the_ends_of_the_range(dtype):
    x = torch.tensor([-60000.0, -100, -10, -0.0, 0, 10, 100, 60000], dtype=dtype)[None, None]
    found = gelu_quantize(x.to(CUDA), dtype_name(dtype)).cpu()
    # tanh is 1 long before GELU is 0: of -10 it is -1e-37.
    torch.testing.assert_close(found, x.clamp(min=0), rtol=0, atol=1e-30)


def results_of(operator, given):
    results = operator(*given.values())
    results = [results] if isinstance(results, torch.Tensor) else results or []
    return [result for result in results if result.numel()]


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - HOPPER))
def test_every_element_is_written_and_the_same_each_time(name):
    operator, arguments = OPERATORS[name]
    runs = []
    for poison in (0x5A, 0xFF):
        before, given = on(CUDA, arguments()), on(CUDA, arguments())
        results = results_of(operator, before)
        addresses = {bits(result).fill_(poison).data_ptr() for result in results}
        del results
        results = results_of(operator, given)
        assert {result.data_ptr() for result in results} == addresses, "not where the poison was"
        written = [*results, *(v for v in given.values() if isinstance(v, torch.Tensor))]
        runs.append([bits(tensor).clone() for tensor in written])
        del results, written
    for once, again in zip(*runs, strict=True):
        assert torch.equal(once, again)


def test_the_first_run_may_be_captured():
    """Runs in a new process, before any other kernel."""
    code = f"""
import sys
sys.path.insert(0, {str(Path(held.__file__).parent)!r})
import torch
from captured import captured
from operators import gelu_arguments, on
from vidc.plugins.ops.gelu_quantize import gelu_quantize
given = on(torch.device("cuda"), gelu_arguments(1, 150, 1536))
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    output = gelu_quantize(*given.values())
graph.replay()
assert output.abs().max() > 0
assert torch.equal(output, gelu_quantize(*given.values()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_they_run_on_torchs_current_stream():
    given = on(CUDA, gelu_arguments(width=1536))
    wanted = gelu_quantize(*given.values())
    x, given["x"] = given["x"], torch.zeros_like(given["x"])
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10**8)  # Cycles: 50 ms in which another stream would be done.
        given["x"].copy_(x)
        found = gelu_quantize(*given.values())
    stream.synchronize()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - HOPPER))
def test_they_are_operators_as_torch_wants_them(name):
    operator, arguments = OPERATORS[name]
    given = on(CUDA, arguments())
    checks = ["test_autograd_registration", "test_faketensor"]
    if not any(v.dtype is FP8 for v in given.values() if isinstance(v, torch.Tensor)):
        checks += ["test_schema", "test_aot_dispatch_dynamic"]
    torch.library.opcheck(operator, tuple(given.values()), test_utils=checks)


def test_torch_compile_calls_operators():
    layer.same_as_eager(torch.compile(layer.Layer(), fullgraph=True), CUDA)


def test_aotinductor_calls_them_and_a_graph_captures_that(tmp_path):
    program = torch.export.export(layer.Layer(), tuple(layer.arguments(CUDA)))
    compile_package(program, tmp_path / "layer.pt2")
    engine = torch._C._aoti.AOTIModelPackageLoader(
        str(tmp_path / "layer.pt2"), "model", True, 1, CUDA.index
    )
    layer.same_as_eager(lambda *given: engine.boxed_run(list(given)), CUDA)

    given, other = layer.arguments(CUDA), layer.arguments(CUDA)
    graph, results = captured(lambda: engine.boxed_run(list(given)))
    for tensor, fresh in zip(given, layer.arguments(CUDA), strict=True):
        tensor.copy_(fresh)
    graph.replay()
    for a, b in zip((*results, *given), (*layer.Layer()(*other), *other), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("refusal", [*REFUSALS, *KINDS, *MEMORY], ids=str)
def test_refusal_leaves_the_gpu_usable(refusal):
    operator, taken = refusal.call()
    with pytest.raises(RuntimeError) as caught:
        operator(*(to_gpu(value) for value in taken.values()))
    assert "[VIDC-KERNEL-ARGUMENT] " in str(caught.value)
    refusal.check(str(caught.value))
    torch.cuda.synchronize()


def to_gpu(value):
    """Copies a tensor to the GPU with its strides and its offset from an aligned address."""
    if not isinstance(value, torch.Tensor):
        return value
    span = sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True)) + 1
    offset = value.data_ptr() % 16 // value.itemsize
    size = (offset + max(span, 1)) * value.itemsize
    memory = torch.zeros(size, dtype=torch.uint8, device=CUDA).view(value.dtype)
    return memory.as_strided(value.shape, value.stride(), offset)


@pytest.mark.parametrize(
    ("name", "first", "elsewhere"),
    [
        ("gelu", "x", "output_scale"), ("gelu less a mean", "x", "output_mean"),
        ("qkv", "qkv", "position"), ("qkv", "qkv", "key_cache"), ("static", "qkv", "value_scale"),
        ("static", "qkv", "key_mean"), ("attention in 16 bits", "query", "valid_length"),
        ("group norm", "x", "shift"), ("frames", "query", "value"),
        ("sampler", "velocity", "progress"),
    ],
)  # fmt: skip
def test_tensors_of_two_devices_are_refused(name, first, elsewhere):
    operator, arguments = OPERATORS[name]
    taken = arguments()
    given = on(CUDA, taken) | {elsewhere: taken[elsewhere]}
    with pytest.raises(RuntimeError, match=f"{elsewhere}: expected {first}'s device cuda:0, found"):
        operator(*given.values())


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there is one GPU")
def test_they_run_on_the_gpu_of_their_tensors():
    held.gelu(gelu_arguments(width=1536), torch.device("cuda", 1))
