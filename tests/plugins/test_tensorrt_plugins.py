"""The library of TensorRT plugins, driven as TensorRT drives it, without a GPU."""

import ctypes
import json
import re
import subprocess
import sys

import plugin_build
import pytest
import torch
from operators import FP8, gelu_arguments
from plugin_cases import CASES
from plugin_host import (
    CHW4,
    DATA_TYPES,
    FIELD_TYPES,
    FLOAT32,
    INT32,
    INT64,
    RUNTIME,
    Attribute,
    Node,
    RefusedError,
    describe,
    ready,
)
from refusals import PLUGINS, REFUSALS

from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.gelu_quantize import gelu_quantize

pytestmark = plugin_build.NEEDED


def ring_write() -> Node:
    """A node of ``qk_norm_rope_ring_write``."""
    operator, arguments = PLUGINS["qkv"]
    return Node.of(operator, arguments())


def listed(*command: object) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_exports_the_entry_points_and_links_no_tensorrt(built):
    library = built / plugin_build.LIBRARY
    exported = listed("nm", "-D", "--defined-only", library)
    assert set(re.findall(r" T (\w+)", exported)) == {
        "getCreators", "setLoggerFinder", "vidc_plugin_abi", "vidc_plugin_error",
    }  # fmt: skip
    assert "nvinfer" not in listed("nm", "-D", library)
    needed = re.findall(r"NEEDED.*\[(.+)\.so", listed("readelf", "-d", library))
    assert set(needed) <= {"libstdc++", "libgcc_s", "libc", "libm", "ld-linux-x86-64"}


def test_warnings_are_errors(built):
    commands = json.loads((built / "compile_commands.json").read_text())
    of_plugins = [c["command"] for c in commands if "vidc_tensorrt.dir" in c["command"]]
    assert of_plugins
    assert all("-Wall -Wextra -Werror" in command for command in of_plugins)


def test_every_fused_operator_has_a_creator(host):
    wanted = {operator.name().removeprefix("vidc::") for operator, _ in PLUGINS.values()}
    assert set(host.creators) == wanted
    for index in host.creators.values():
        assert host.of_creator("kind", index) == "PLUGIN CREATOR_V3ONE"
        assert host.of_creator("version", index) == "1"
        assert host.of_creator("namespace", index) == "vidc"


@pytest.mark.parametrize("name", PLUGINS)
def test_attributes_match_the_operator_schema(host, name):
    operator, _ = PLUGINS[name]
    types = {"int": int, "float": float, "bool": bool, "str": str}
    wanted = {
        argument.name: FIELD_TYPES[types[str(argument.type)]]
        for argument in operator._schema.arguments
        if str(argument.type) in types
    }
    assert host.field_types(operator.name().removeprefix("vidc::")) == wanted


def results(operator, taken) -> list[torch.Tensor]:
    """Outputs of a plugin: what the operator returns, then what it writes."""
    found = operator(*taken.values())
    returned = [found] if isinstance(found, torch.Tensor) else list(found or ())
    written = [taken[a.name] for a in operator._schema.arguments if a.is_write]
    return [*(result for result in returned if result.numel()), *written]


@pytest.mark.parametrize("name", CASES)
def test_plugin_passes_build_and_load(host, name):
    operator, arguments = CASES[name]
    node = Node.of(operator, arguments())
    plugin, types, shapes = ready(host, node)
    wanted = results(operator, arguments())
    assert types == [tensor.dtype for tensor in wanted]
    assert shapes == [tuple(tensor.shape) for tensor in wanted]
    returned = len(wanted) - len(node.written)
    assert plugin.aliases() == [-1] * returned + node.written
    assert plugin.build_version == 2
    assert [plugin.text(each) for each in ("name", "version", "namespace")] == [
        node.operator, "1", "vidc",
    ]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_serialized_fields_recreate_the_plugin(host, name):
    operator, arguments = CASES[name]
    node = Node.of(operator, arguments())
    made = host.create(node.operator, node.attributes)
    fields = made.serialize()
    abi, *attributes = fields
    assert (abi.name, abi.data) == ("vidc_plugin_abi", PLUGIN_ABI.to_bytes(4, "little"))
    values = {a.name: (a.type, a.data.rstrip(b"\0")) for a in attributes}
    assert values == {a.name: (a.type, a.data.rstrip(b"\0")) for a in node.attributes}
    described = made.text("metadata")
    del made
    again = host.create(node.operator, fields, RUNTIME)
    for plugin in (again, again.clone(), again.attach()):
        assert plugin.serialize() == fields
        assert plugin.text("metadata") == described
    assert all(f"{a.name}=" in described for a in attributes)


@pytest.mark.parametrize("name", CASES)
def test_supports_only_the_operators_dtypes_in_linear_format(host, name):
    operator, arguments = CASES[name]
    node = Node.of(operator, arguments())
    plugin, types, shapes = ready(host, node)
    inputs = node.described()
    outputs = [describe(torch.empty(s, dtype=t)) for s, t in zip(shapes, types, strict=True)]
    tensors = [*inputs, *outputs]
    for index, tensor in enumerate(tensors):
        tensor.format = CHW4
        assert not plugin.supports(index, inputs, outputs)
        tensor.format = 0
        dtype = tensor.type
        supported = []
        for tensor.type in DATA_TYPES.values():
            if plugin.supports(index, inputs, outputs):
                supported.append(tensor.type)
        tensor.type = dtype
        assert dtype in supported
        assert DATA_TYPES[torch.int32] not in supported
        assert index < len(inputs) or supported == [dtype]


@pytest.mark.parametrize(
    ("name", "argument", "dtype"),
    [
        ("attention", "key_cache", torch.int8), ("attention", "value_cache", torch.int8),
        ("attention in INT8", "value_cache", FP8), ("static", "value_cache", torch.int8),
        ("attention in 16 bits", "key_cache", torch.float16),
        ("qkv", "key_cache", torch.float16), ("qkv", "query_weight", torch.float16),
    ],
)  # fmt: skip
def test_dependent_dtype_must_match(host, name, argument, dtype):
    operator, arguments = CASES[name]
    node = Node.of(operator, arguments())
    plugin, types, shapes = ready(host, node)
    inputs = node.described()
    outputs = [describe(torch.empty(s, dtype=t)) for s, t in zip(shapes, types, strict=True)]
    index = [k for k, v in arguments().items() if isinstance(v, torch.Tensor)].index(argument)
    inputs[index].type = DATA_TYPES[dtype]
    assert not plugin.supports(index, inputs, outputs)


def test_unknown_sizes_come_from_the_profile(host):
    node = ring_write()
    plugin = host.create(node.operator, node.attributes)
    inputs = node.described()
    outputs = [inputs[0], *inputs[6:]]
    plugin.configure(inputs, outputs, first_is_unknown=True)
    inputs[0] = describe(torch.empty(3, *node.inputs[0].shape[1:], dtype=torch.bfloat16))
    with pytest.raises(RefusedError, match=r"qkv: expected shape .*, found \[3, 5, 288\]"):
        plugin.configure(inputs, outputs, first_is_unknown=True)


def told_shapes(host, node):
    plugin = host.create(node.operator, node.attributes)
    inputs = node.described()
    plugin.on_shape_change(inputs, [inputs[0]] * plugin.outputs)


@pytest.mark.parametrize("refusal", [r for r in REFUSALS if r.of in PLUGINS], ids=str)
def test_refuses_with_the_messages_of_the_references(host, refusal):
    operator, taken = refusal.call()
    with pytest.raises(UsageError) as wanted:
        operator(*taken.values())
    # Of shapes alone: one of them is of 400 MB.
    shapes = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in taken.items()}
    with pytest.raises(RefusedError) as caught:
        told_shapes(host, Node.of(operator, shapes))
    assert str(caught.value) == str(wanted.value)


SINK, EPS = ring_write().attributes


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ([SINK], "eps: expected an attribute of type float32, found none"),
        ([], "sink: expected an attribute of type int64, found none"),
        ([SINK, Attribute.of("eps", 1)], "eps: expected an attribute of type float32, found int64"),
        ([SINK, Attribute("eps", 2, 1, bytes(8))], "type float32, found another type"),
        ([SINK, Attribute("eps", FLOAT32, 2, bytes(8))], "length 1, found length 2"),
        ([SINK, EPS, Attribute.of("gamma", 0.5)], "gamma: expected no attribute of this name, f"),
    ],
)  # fmt: skip
def test_rejects_missing_mistyped_and_unknown_attributes(host, attributes, message):
    with pytest.raises(RefusedError) as caught:
        host.create("qk_norm_rope_ring_write", attributes)
    said = "[VIDC-KERNEL-ARGUMENT] vidc::qk_norm_rope_ring_write: "
    assert str(caught.value).startswith(said)
    assert message in str(caught.value)
    assert "\n  try: " in str(caught.value)


def resized(attribute: Attribute, type: int, size: int) -> Attribute:
    """An integer attribute of another width."""
    value = int.from_bytes(attribute.data, "little", signed=True)
    return Attribute(attribute.name, type, 1, value.to_bytes(size, "little", signed=True))


@pytest.mark.parametrize(("type", "size"), [(INT32, 4), (INT64, 8)])
def test_integers_are_read_from_either_width(host, type, size):
    """TensorRT-RTX's parser passes int32, and TensorRT's may pass int64."""
    node = Node.of(PLUGINS["static"][0], PLUGINS["static"][1]())
    given = [resized(a, type, size) if a.type in (INT32, INT64) else a for a in node.attributes]
    made = host.create(node.operator, given).serialize()
    assert made == host.create(node.operator, node.attributes).serialize()


def test_flag_beyond_32_bits_is_rejected(host):
    node = Node.of(PLUGINS["static"][0], PLUGINS["static"][1]())
    large = Attribute("quantize_query", INT64, 1, (2**32 + 1).to_bytes(8, "little"))
    given = [large if a.name == "quantize_query" else a for a in node.attributes]
    with pytest.raises(RefusedError, match="quantize_query: expected a number of 32 bits, found"):
        host.create(node.operator, given)


@pytest.mark.parametrize("named", ["", "int8", "bfloat", "bfloat16, float16"])
def test_rejects_invalid_output_dtype(host, named):
    with pytest.raises(RefusedError, match="vidc::gelu_quantize: dtype: expected float32 or bflo"):
        host.create("gelu_quantize", [Attribute.of("dtype", named)])


@pytest.mark.parametrize("named", ["", "float32", "int8"])
def test_attention_rejects_unsupported_output_dtype(host, named):
    expected = "expected bfloat16 or float16 or float8_e4m3fn, found"
    with pytest.raises(RefusedError, match=f"vidc::ring_attention_8bit: dtype: {expected}"):
        host.create("ring_attention_8bit", [Attribute.of("dtype", named)])


def test_flags_are_0_or_1(host):
    node = Node.of(PLUGINS["static"][0], PLUGINS["static"][1]())
    attributes = [
        Attribute(a.name, a.type, 1, (2).to_bytes(4, "little")) if a.name == "quantize_query" else a
        for a in node.attributes
    ]
    with pytest.raises(RefusedError, match="_static: quantize_query: expected 0 or 1, found 2"):
        host.create(node.operator, attributes)


ABI = Attribute("vidc_plugin_abi", 5, 1, PLUGIN_ABI.to_bytes(4, "little"))
OTHER_ABI = Attribute("vidc_plugin_abi", 5, 1, (PLUGIN_ABI + 1).to_bytes(4, "little"))
NO_ABI = Attribute("vidc_plugin_abi", INT64, 1, bytes(8))


@pytest.mark.parametrize(
    ("fields", "phase", "found"),
    [
        ([OTHER_ABI, SINK, EPS], 1, PLUGIN_ABI + 1), ([OTHER_ABI, SINK, EPS], 0, PLUGIN_ABI + 1),
        ([SINK, EPS], 1, "none"), ([NO_ABI, SINK, EPS], 1, "none"),
        ([OTHER_ABI, SINK], 1, PLUGIN_ABI + 1),
    ],
)  # fmt: skip
def test_rejects_fields_of_another_abi_first(host, fields, phase, found):
    with pytest.raises(RefusedError) as caught:
        host.create("qk_norm_rope_ring_write", fields, phase)
    message = f"vidc_plugin_abi: expected {PLUGIN_ABI}, found {found}\n  try: "
    assert str(caught.value).startswith(
        f"[VIDC-KERNEL-ABI] vidc::qk_norm_rope_ring_write: {message}"
    )


def test_library_returns_its_abi(built):
    assert ctypes.CDLL(str(built / plugin_build.LIBRARY)).vidc_plugin_abi() == PLUGIN_ABI


@pytest.mark.parametrize("count", [0, 4])
def test_rejects_wrong_number_of_inputs_at_every_step(host, count):
    node = Node.of(gelu_quantize, gelu_arguments())
    plugin = host.create(node.operator, node.attributes)
    tensors = node.inputs * count
    inputs, outputs = [describe(t) for t in tensors], [describe(node.inputs[0])]
    steps = [
        lambda: plugin.output_types([t.dtype for t in tensors]),
        lambda: plugin.output_shapes([t.shape for t in tensors]),
        lambda: plugin.configure(inputs, outputs),
        lambda: plugin.on_shape_change(inputs, outputs),
    ]
    for step in steps:
        with pytest.raises(RefusedError) as caught:
            step()
        said = f"vidc::{node.operator}: inputs: expected 1 to 3 tensors, found {count}"
        assert said in str(caught.value)
    assert not plugin.supports(0, inputs, outputs)


def test_rejects_wrong_number_of_outputs(host):
    node = ring_write()
    plugin = host.create(node.operator, node.attributes)
    inputs = node.described()
    with pytest.raises(RefusedError, match="outputs: expected 3 tensors, found 2"):
        plugin.on_shape_change(inputs, inputs[:2])


@pytest.mark.parametrize("name", PLUGINS)
def test_rejects_unsupported_dtype_when_the_network_is_made(host, name):
    operator, arguments = PLUGINS[name]
    node = Node.of(operator, arguments())
    plugin = host.create(node.operator, node.attributes)
    dtypes = [tensor.dtype for tensor in node.inputs]
    names = [k for k, v in arguments().items() if isinstance(v, torch.Tensor)]
    for index, argument in enumerate(names):
        given = [*dtypes[:index], torch.int32, *dtypes[index + 1 :]]
        with pytest.raises(RefusedError) as caught:
            plugin.output_types(given)
        said = str(caught.value)
        assert said.startswith(f"[VIDC-KERNEL-ARGUMENT] vidc::{node.operator}: {argument}: expect")
        assert "found another dtype" in said


def test_rejects_shape_with_too_few_dimensions(host):
    node = ring_write()
    plugin = host.create(node.operator, node.attributes)
    shapes = [tuple(tensor.shape) for tensor in node.inputs]
    shapes[6] = shapes[6][:2]
    with pytest.raises(RefusedError, match="key_cache: expected a dimension 2, found 2 dimensions"):
        plugin.output_shapes(shapes)


def test_written_input_and_output_must_alias(host):
    node = ring_write()
    plugin, types, shapes = ready(host, node)
    elsewhere = [torch.empty(s, dtype=t) for s, t in zip(shapes, types, strict=True)]
    with pytest.raises(RefusedError, match=r"write: key_cache: .*ALIASED_PLUGIN_IO_10_03\), found"):
        plugin.enqueue(node.inputs, elsewhere)


def test_tensorrt_rtx_loads_it_and_lists_its_creators(built):
    pytest.importorskip("tensorrt_rtx", reason="tensorrt_rtx is not installed")
    code = f"""
import tensorrt_rtx as trt
registry = trt.get_plugin_registry()
before = {{(c.name, c.plugin_namespace) for c in registry.all_creators}}
assert registry.load_library({str(built / plugin_build.LIBRARY)!r}) is not None
after = {{(c.name, c.plugin_namespace) for c in registry.all_creators}}
print(sorted(name for name, space in after - before if space == "vidc"))
creator = registry.get_creator("qk_norm_rope_ring_write", "1", "vidc")
import numpy
fields = [
    trt.PluginField("sink", numpy.array([3], numpy.int64), trt.PluginFieldType.INT64),
    trt.PluginField("eps", numpy.array([0.5], numpy.float32), trt.PluginFieldType.FLOAT32),
]
plugin = creator.create_plugin("r", trt.PluginFieldCollection(fields), trt.TensorRTPhase.BUILD)
assert plugin is not None
none = trt.PluginFieldCollection([])
assert creator.create_plugin("r", none, trt.TensorRTPhase.BUILD) is None
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    wanted = sorted({operator.name().removeprefix("vidc::") for operator, _ in PLUGINS.values()})
    assert done.stdout == f"{wanted}\n"
    said = "[VIDC-KERNEL-ARGUMENT] vidc::qk_norm_rope_ring_write: sink: expected an attribute"
    assert said in done.stderr
