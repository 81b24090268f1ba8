"""Launches of TensorRT plugins, over a CUDA that records them."""

import math
import struct

import launched
import plugin_build
import pytest
import torch
from attention_16bit import arguments as attention_16bit_arguments
from operators import gelu_arguments
from operators_8bit import attention_arguments
from plugin_cases import CASES
from plugin_host import (
    FLOAT32,
    INT64,
    Node,
    RefusedError,
    describe,
    ready,
)
from refusal_matrix import MEMORY
from refusals import HOPPER, PLUGINS

from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.ring_attention_8bit import ring_attention_8bit
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit

pytestmark = plugin_build.NEEDED


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA GPU")
@pytest.mark.parametrize("name", PLUGINS)
def test_enqueue_fails_without_a_gpu(host, name):
    operator, arguments = PLUGINS[name]
    node = Node.of(operator, arguments())
    plugin, types, shapes = ready(host, node)
    with pytest.raises(RefusedError, match=r"\[VIDC-KERNEL-DRIVER\] vidc::" + node.operator):
        plugin.enqueue(node.inputs, outputs_for(plugin, node, types, shapes))


def outputs_for(plugin, node, types, shapes):
    outputs = [torch.empty(s, dtype=t) for s, t in zip(shapes, types, strict=True)]
    aliases = enumerate(plugin.aliases())
    return [node.inputs[i] if i >= 0 else outputs[output] for output, i in aliases]


STREAM = 0x5EED


@pytest.mark.parametrize("name", CASES)
def test_kernels_get_tensors_and_stream(recorded, name):
    operator, arguments = CASES[name]
    taken = arguments()
    node = Node.of(operator, taken)
    plugin, types, shapes = ready(recorded, node)
    outputs = outputs_for(plugin, node, types, shapes)
    plugin.enqueue(node.inputs, outputs, STREAM)
    record = recorded.recorder
    launches = range(record.recorded_launches())
    fields = launched.fields(node.operator, taken, node.inputs, outputs, plugin.workspace)
    assert len(launches) == len(fields)
    for launch, wanted in zip(launches, fields, strict=True):
        found = [record.recorded_word(launch, word) for word in range(record.recorded_words())]
        assert {word: found[word] for word in wanted} == wanted
    words = {record.recorded_word(i, w) for i in launches for w in range(record.recorded_words())}
    halves = {half for word in words for half in struct.unpack("2I", struct.pack("Q", word))}
    numbers = [a for a in node.attributes if a.type in (FLOAT32, INT64)]
    assert {int.from_bytes(a.data, "little") for a in numbers} <= halves
    assert {record.recorded_stream(i) for i in launches} == {STREAM}


@pytest.mark.parametrize(
    "refusal", [r for r in MEMORY if r.of in PLUGINS and "aligned to" in r.message], ids=str
)
def test_enqueue_refuses_unaligned_memory(recorded, refusal):
    operator, taken = refusal.call()
    node = Node.of(operator, taken)
    plugin, types, shapes = ready(recorded, node)
    with pytest.raises(RefusedError) as caught:
        plugin.enqueue(node.inputs, outputs_for(plugin, node, types, shapes))
    refusal.check(str(caught.value))
    assert recorded.recorder.recorded_launches() == 0


@pytest.mark.parametrize(
    ("operator", "arguments", "blocks"),
    [
        (PLUGINS["qkv"][0], PLUGINS["qkv"][1](), 10),  # A block for each of 2 x 5 tokens.
        (gelu_quantize, gelu_arguments(2, 20, 2048), 14),  # 6 rows, and the last 4.
        (
            ring_attention_16bit,
            attention_16bit_arguments(2, 70, 3),
            12,
        ),  # 64 queries, and the last 6.
    ],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_grid_matches_the_work(recorded, operator, arguments, blocks):
    node = Node.of(operator, arguments)
    plugin, types, shapes = ready(recorded, node)
    plugin.enqueue(node.inputs, outputs_for(plugin, node, types, shapes))
    assert recorded.recorder.recorded_blocks(0) == blocks


PART = 3 * 128 * 16
"""Bytes of a part of an FP8 ring's output: of 3 warpgroups, each thread's 16."""


@pytest.mark.parametrize(("found", "blocks"), [(16, 16), (132, 132), (144, 144), (160, 144)])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_workspace_suffices_on_any_hopper(host, recorded, head_dim, found, blocks):
    """A plan has its size from the GPU that it was built on."""
    node = Node.of(ring_attention_8bit, attention_arguments(head_dim=head_dim))
    record = recorded.recorder
    record.recorded_begin(9, found)
    plugin, types, shapes = ready(recorded, node)
    plugin.enqueue(node.inputs, outputs_for(plugin, node, types, shapes))
    address, value, zeroed = (record.recorded_word(0, word) for word in range(3))
    assert (address, value) == (plugin.workspace.data_ptr(), 0)
    assert record.recorded_blocks(1) == blocks
    words = [record.recorded_word(1, word) for word in range(record.recorded_words())]
    assert address + zeroed in words  # Where parts begin: a block's two, of D/8 + 1 such each.
    assert zeroed + blocks * 2 * PART * (head_dim // 8 + 1) <= len(plugin.workspace)
    assert len(ready(host, node)[0].workspace) == len(plugin.workspace)


def workspace_bytes(host, node, **settings) -> int:
    plugin = host.create(node.operator, node.attributes)
    return plugin.workspace_bytes(node.described(), [describe(node.inputs[0])], **settings)


def test_workspace_is_for_the_largest_shapes_of_the_profile(host):
    small, large = (
        Node.of(ring_attention_8bit, attention_arguments(batch=batch, tokens=300))
        for batch in (1, 7)
    )
    assert 0 < workspace_bytes(host, small) < workspace_bytes(host, large)
    for node in (small, large):
        assert workspace_bytes(host, node, first_is_unknown=True) == workspace_bytes(host, node)


def test_invalid_shapes_have_no_workspace(host):
    node = Node.of(ring_attention_8bit, attention_arguments(slots=41, stored=32))
    assert workspace_bytes(host, node) == 0
    assert "ring_attention_8bit: value_cache: expected a number of slots" in host.error()


@pytest.mark.parametrize("name", sorted(PLUGINS.keys() - HOPPER))
def test_other_operators_need_no_workspace(host, name):
    operator, arguments = PLUGINS[name]
    assert ready(host, Node.of(operator, arguments()))[0].workspace is None


def test_enqueue_needs_the_workspace(recorded):
    node = Node.of(ring_attention_8bit, attention_arguments())
    plugin, types, shapes = ready(recorded, node)
    plugin.workspace = None
    with pytest.raises(RefusedError, match="ring_attention_8bit: workspace: expected memory of"):
        plugin.enqueue(node.inputs, outputs_for(plugin, node, types, shapes))
    assert recorded.recorder.recorded_launches() == 0


def portable_alone(recorded, name):
    """One launch, without a workspace that has to be filled."""
    operator, arguments = PLUGINS[name]
    node = Node.of(operator, arguments())
    plugin, types, shapes = ready(recorded, node)
    outputs = outputs_for(plugin, node, types, shapes)
    plugin.workspace = None
    plugin.enqueue(node.inputs, outputs, STREAM)
    record = recorded.recorder
    assert record.recorded_launches() == 1
    batch, tokens, heads, _ = node.inputs[0].shape
    assert record.recorded_blocks(0) == batch * heads * math.ceil(tokens / 64)
    words = {record.recorded_word(0, word) for word in range(record.recorded_words())}
    assert {tensor.data_ptr() for tensor in (*node.inputs, *outputs)} <= words
    assert record.recorded_stream(0) == STREAM


@pytest.mark.parametrize("name", sorted(HOPPER))
@pytest.mark.parametrize("capability", [7, 8, 10, 12])
def test_other_gpus_run_the_portable_kernel(recorded, name, capability):
    recorded.recorder.recorded_begin(capability, 148)
    portable_alone(recorded, name)


@pytest.mark.deep  # Compiles the library again.
@pytest.mark.parametrize("name", sorted(HOPPER))
def test_turing_needs_no_hopper_kernel(recorded_for_turing, name):
    recorded_for_turing.recorder.recorded_begin(7, 40)
    portable_alone(recorded_for_turing, name)


@pytest.mark.deep  # Compiles the library again.
@pytest.mark.parametrize("name", sorted(HOPPER))
def test_hopper_needs_its_own_kernel(recorded_for_turing, name):
    """It would run the portable one, and nobody would know why it is slow."""
    operator, arguments = PLUGINS[name]
    node = Node.of(operator, arguments())
    plugin, types, shapes = ready(recorded_for_turing, node)
    with pytest.raises(RefusedError) as caught:
        plugin.enqueue(node.inputs, outputs_for(plugin, node, types, shapes))
    said = f"[VIDC-KERNEL-GPU] vidc::{node.operator}: the library has no kernel for this GPU"
    assert str(caught.value).startswith(said)
    assert "\n  try: build the library for this GPU" in str(caught.value)
    assert recorded_for_turing.recorder.recorded_launches() == 0


def test_enqueue_needs_shapes_first(recorded):
    node = Node.of(gelu_quantize, gelu_arguments())
    plugin = recorded.create("gelu_quantize", node.attributes)
    with pytest.raises(RefusedError, match="inputs: expected 1 to 3 tensors, found 0"):
        plugin.enqueue(node.inputs, node.inputs[:1])
    assert recorded.recorder.recorded_launches() == 0
