"""TensorRT plugins driven as TensorRT drives them, held to what their operators are held to.

``VIDC_TEST_PLUGINS`` is the folder where another machine built the library and its host.
"""

import os
from functools import partial
from itertools import product
from pathlib import Path

import attention_16bit
import held
import plugin_build
import pytest
import torch
from attention_8bit.checks import first_wrong, problem, relative, rounded_apart, rounding
from attention_8bit.emulation import emulate
from operators import FLOATS, FP8, Ring, gelu_arguments, on, qkv_arguments
from operators_8bit import arguments as to_8bit_arguments
from operators_8bit import attention_arguments
from plugin_host import Host, Node, ready
from portable_attention import OF_WEIGHTS

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.qk_norm_rope_ring_write_8bit import qk_norm_rope_ring_write_static
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

CUDA = torch.device("cuda", 0)
HOPPER = (9, 0)
WRAPPING = Ring(batch=2, tokens=70, heads=3, head_dim=128, window=160, sink=40, position=130)

HALVES, EIGHT_BITS = (torch.bfloat16, torch.float16), (FP8, torch.int8)
EITHER = (False, True)
CALLS = {
    **{
        f"gelu of {dtype} to {to}": (
            gelu_quantize,
            partial(gelu_arguments, 2, 3, 8960, dtype, to, centered=to is FP8),
        )
        for dtype, to in product(HALVES, (*HALVES, FP8))
    },
    **{
        f"ring write of {dtype}": (
            qk_norm_rope_ring_write, partial(qkv_arguments, WRAPPING, dtype, 1),
        )
        for dtype in HALVES
    },
    **{
        f"ring write of {dtype} to {to}, "
        f"transposed {transposed}, queries {quantized}, mean {mean}": (
            qk_norm_rope_ring_write_static,
            partial(to_8bit_arguments, WRAPPING, dtype, to, 1, 1.0, transposed, quantized, mean),
        )
        for dtype, to, transposed, quantized, mean in product(
            HALVES, EIGHT_BITS, EITHER, EITHER, EITHER
        )
    },
    **{
        f"attention in {dtype} over {valid}": (
            ring_attention_16bit,
            partial(attention_16bit.arguments, 2, 300, 3, 128, 500, valid, dtype),
        )
        for dtype, valid in product(HALVES, (65, 500))
    },
    **{
        f"attention in {of} to {to} over {valid}": (
            ring_attention_8bit,
            partial(attention_arguments, 2, 300, 3, 128, 500, 512, valid, of, to),
        )
        for of, to, valid in product(EIGHT_BITS, (*HALVES, FP8), (130, 500))
    },
}  # fmt: skip
"""Each plugin's operator and its arguments; the rings are written across their wrap."""


@pytest.fixture(scope="module")
def host(gpu) -> Host:
    given = os.environ.get("VIDC_TEST_PLUGINS")
    if given is None:
        pytest.skip("VIDC_TEST_PLUGINS names no folder with the library of plugins and its host")
    return Host(Path(given) / plugin_build.LIBRARY, Path(given) / plugin_build.HOST)


def by_plugin(host, operator):
    """The operator's results and writes, made by its plugin on torch's current stream."""

    def call(*arguments):
        names = [argument.name for argument in operator._schema.arguments]
        node = Node.of(operator, dict(zip(names, arguments, strict=True)))
        plugin, types, shapes = ready(host, node)
        outputs = [
            torch.empty(shape, dtype=dtype, device=CUDA)
            for shape, dtype in zip(shapes, types, strict=True)
        ]
        for output in outputs:
            output.view(torch.uint8).fill_(0x7F)
        returned = outputs[: len(outputs) - len(node.written)]
        written = [node.inputs[index] for index in node.written]
        stream = torch.cuda.current_stream().cuda_stream
        plugin.enqueue(node.inputs, [*returned, *written], stream)
        torch.cuda.synchronize()
        wanted = len(operator._schema.returns)
        if wanted == 2 and len(returned) == 1:  # No scales of queries that are not quantized.
            _, tokens, heads, _ = returned[0].shape
            returned.append(torch.empty(0, heads, tokens, device=CUDA))
        return returned[0] if wanted == 1 else tuple(returned) or None

    return call


@pytest.fixture(autouse=True)
def plugins(host, monkeypatch):
    """Lets ``held`` run plugins."""
    run = held.run
    monkeypatch.setattr(
        held, "run", lambda operator, *given: run(by_plugin(host, operator), *given)
    )


def test_each_plugin_is_compared_with_its_operator(host):
    operators = {operator.name().removeprefix("vidc::") for operator, _ in CALLS.values()}
    assert set(host.creators) == operators


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("call", CALLS)
def test_plugin_gives_the_bits_of_its_torch_operator(host, call):
    """The plugin is enqueued on a stream of its own, where its inputs arrive late."""
    operator, arguments = CALLS[call]
    expected = on(CUDA, arguments())
    wanted = tensors_of(operator(*expected.values()))
    given = on(CUDA, arguments())
    inputs = {name: value for name, value in given.items() if isinstance(value, torch.Tensor)}
    fresh = {name: value.clone() for name, value in inputs.items()}
    for value in inputs.values():
        value.view(torch.uint8).zero_()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(10**8)  # Cycles: 50 ms in which another stream would be done.
        for name, value in inputs.items():
            value.copy_(fresh[name])
        found = tensors_of(by_plugin(host, operator)(*given.values()))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert torch.equal(bits(a), bits(b))
    for name, value in inputs.items():
        assert torch.equal(bits(value), bits(expected[name])), name


def tensors_of(results):
    """An operator's results, without those that are empty."""
    results = [results] if isinstance(results, torch.Tensor) else results or []
    return [result for result in results if result.numel()]


def bits(tensor):
    return tensor.contiguous().view(torch.uint8)


@pytest.mark.parametrize("output", [*FLOATS, FP8])
@pytest.mark.parametrize("dtype", FLOATS)
def test_gelu_quantize(dtype, output):
    for centered in {False, output is FP8}:
        held.gelu(gelu_arguments(2, 3, 8960, dtype, output, centered=centered), CUDA)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("position", [0, 30, 130, 2**33])
def test_ring_write(dtype, position):
    ring = Ring(**{**vars(WRAPPING), "position": position})
    held.qkv(ring, qkv_arguments(ring, dtype, 1), CUDA)


@pytest.mark.parametrize("to", [FP8, torch.int8])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_ring_write_8bit(to, transposed, quantized, mean):
    taken = to_8bit_arguments(WRAPPING, torch.bfloat16, to, 1, 1.0, transposed, quantized, mean)
    held.to_8bit(WRAPPING, taken, CUDA)


def test_a_captured_launch_follows_the_position(host):
    taken = qkv_arguments(WRAPPING, torch.bfloat16, 1)
    given = {k: v.to(CUDA) if isinstance(v, torch.Tensor) else v for k, v in taken.items()}
    node = Node.of(held.qk_norm_rope_ring_write, given)
    plugin, types, shapes = ready(host, node)
    outputs = [torch.empty(shapes[0], dtype=types[0], device=CUDA)]
    outputs += [node.inputs[index] for index in node.written]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plugin.enqueue(node.inputs, outputs, torch.cuda.current_stream().cuda_stream)
    for position in (0, 35, 130, 2**33):
        fresh = taken | {"position": torch.tensor([position])}
        for name, value in fresh.items():
            if isinstance(value, torch.Tensor):
                given[name].copy_(value)
        graph.replay()
        wanted = by_plugin(host, held.qk_norm_rope_ring_write)(
            *(v.to(CUDA) if isinstance(v, torch.Tensor) else v for v in fresh.values())
        )
        assert torch.equal(outputs[0], wanted)


@pytest.mark.parametrize("of", [FP8, torch.int8], ids=str)
@pytest.mark.parametrize(("queries", "head_dim", "batch"), [(140, 64, 2), (4680, 128, 1)])
def test_ring_attention(hopper, host, of, queries, head_dim, batch):
    at = problem(queries, 500, 3, head_dim, batch, CUDA, of)
    attend = by_plugin(host, ring_attention_8bit)

    def attended(valid, dtype, output_scale=None):
        it = at.spoiled(valid)
        return attend(
            it.query, it.query_scale, it.ring.key, it.ring.value, it.scales.key_scale,
            it.scales.value_scale, it.scales.value_mean, torch.tensor([valid], device=CUDA), dtype,
            output_scale,
        )  # fmt: skip

    for valid in (1, 129, 500):
        wanted = emulate(at.query, at.query_scale, at.ring, at.scales, valid)
        besides = rounding(at, valid)
        found = attended(valid, "bfloat16")
        assert relative(found, wanted) < 0.006 + rounded_apart(wanted, besides, few=True)
        assert first_wrong(found, wanted, besides) is None, valid
    scale = torch.tensor([0.02], device=CUDA)
    found = attended(470, "float8_e4m3fn", scale).float()
    wanted = (attended(470, "float16").float() / scale).clamp(-448, 448)
    assert ((found - wanted).abs() <= 2.0**-4 * wanted.abs() * 1.01 + 2.0**-10).all()


def test_captured_attention_follows_the_length(hopper, host):
    given = on(CUDA, attention_arguments(2, 300, 3, 128, 500, 512, of=torch.int8))
    node = Node.of(ring_attention_8bit, given)
    plugin, types, shapes = ready(host, node)
    output = torch.empty(shapes[0], dtype=types[0], device=CUDA)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        plugin.enqueue(node.inputs, [output], torch.cuda.current_stream().cuda_stream)
    for valid in (1, 130, 500, 333):
        given["valid_length"].fill_(valid)
        output.fill_(torch.nan)
        graph.replay()
        assert torch.equal(output, by_plugin(host, ring_attention_8bit)(*given.values()))


def test_attention_on_another_gpu_than_hopper_is_the_portable_kernel_s(host):
    if torch.cuda.get_device_capability(CUDA) == HOPPER:
        pytest.skip("the GPU is a Hopper, which has a kernel of its own")
    taken = attention_arguments(2, 300, 3, 128, 500, 512, 490)
    held.attention(taken, CUDA, by_plugin(host, ring_attention_8bit), OF_WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_attention_in_16_bits(host, dtype):
    for valid in (1, 65, 490, 500):
        taken = attention_16bit.arguments(2, 300, 3, 128, 500, valid, dtype)
        attention_16bit.held(by_plugin(host, ring_attention_16bit), taken, CUDA)
