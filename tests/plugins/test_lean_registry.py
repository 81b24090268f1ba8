"""The library of plugins in the registry of TensorRT's lean runtime, which needs no GPU.

The lean runtime is TensorRT's own (11.4), and the library was compiled with headers of 10.14.
"""

import json
import subprocess
import sys
from importlib.util import find_spec

import plugin_build
import pytest
from plugin_host import CHAR, FLOAT32, INT32, INT64, Node
from refusals import PLUGINS

from vidc.plugins.abi import PLUGIN_ABI

LEAN = find_spec("tensorrt_lean_bindings")

pytestmark = [
    plugin_build.NEEDED,
    pytest.mark.skipif(LEAN is None, reason="TensorRT's lean runtime is not installed"),
]

CODE = """
import json, sys
import numpy
import tensorrt_lean_bindings as trt

library, cases, abi = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])
registry = trt.get_plugin_registry()
assert registry.load_library(library) is not None
types = {"CHAR": numpy.int8, "FLOAT32": numpy.float32, "INT32": numpy.int32, "INT64": numpy.int64}

def field(name, type, data):
    values = numpy.frombuffer(bytes.fromhex(data), types[type])
    return trt.PluginField(name, values, getattr(trt.PluginFieldType, type))

def made(operator, fields, phase):
    creator = registry.get_creator(operator, "1", "vidc")
    return creator.create_plugin("node", trt.PluginFieldCollection(fields), phase)

BUILD, RUNTIME = trt.TensorRTPhase.BUILD, trt.TensorRTPhase.RUNTIME
found = {"version": trt.__version__, "creators": {}, "made": {}, "refused": {}}
for creator in registry.all_creators:
    if creator.plugin_namespace == "vidc":
        listed = {f.name: f.type.name for f in creator.field_names}
        found["creators"][creator.name] = [creator.plugin_version, listed]
for operator, attributes, serialized in cases:
    found["made"][operator] = [
        made(operator, [field(*a) for a in attributes], BUILD) is not None,
        made(operator, [field(*a) for a in serialized], RUNTIME) is not None,
    ]
    other = [["vidc_plugin_abi", "INT32", (abi + 1).to_bytes(4, "little").hex()]]
    refused = [made(operator, [field(*a) for a in other + attributes], phase) is None
               for phase in (BUILD, RUNTIME)]
    refused.append(made(operator, [field(*a) for a in attributes], RUNTIME) is None)
    found["refused"][operator] = refused
    if operator == "qk_norm_rope_ring_write_static":
        flags = [a if a[0] != "quantize_query" else [*a[:2], "02000000"] for a in attributes]
dtype = [["dtype", "CHAR", b"int4".hex()]]
invalid = [("qk_norm_rope_ring_write_static", flags), ("gelu_quantize", dtype)]
found["invalid"] = [made(o, [field(*a) for a in given], BUILD) is None for o, given in invalid]
print(json.dumps(found))
"""
TYPES = {CHAR: "CHAR", FLOAT32: "FLOAT32", INT32: "INT32", INT64: "INT64"}
NODES = {node.operator: node for node in (Node.of(o, made()) for o, made in PLUGINS.values())}


@pytest.fixture(scope="module")
def registry(built, host):
    """Facts about the library in the registry, found by a process of its own."""
    cases = [
        (name, written(node.attributes), written(host.create(name, node.attributes).serialize()))
        for name, node in NODES.items()
    ]
    library = str(built / plugin_build.LIBRARY)
    done = subprocess.run(
        [sys.executable, "-c", CODE, library, json.dumps(cases), str(PLUGIN_ABI)],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) | {"stderr": done.stderr}


def written(attributes) -> list[tuple[str, str, str]]:
    return [(a.name, TYPES[a.type], a.data.hex()) for a in attributes]


def test_is_tensorrts_own_runtime(registry):
    assert registry["version"].startswith("11.")


def test_lists_every_creator_with_version_and_attributes(registry):
    assert registry["creators"] == {
        name: ["1", {a.name: TYPES[a.type] for a in node.attributes}]
        for name, node in NODES.items()
    }


@pytest.mark.parametrize("name", NODES)
def test_takes_attributes_and_what_a_plugin_serialized_of_them(registry, host, name):
    """The Python package reads no fields of a plugin in C++: the host compares them."""
    assert registry["made"][name] == [True, True]
    node = NODES[name]
    abi, *attributes = host.create(name, node.attributes).serialize()
    assert (abi.name, abi.data) == ("vidc_plugin_abi", PLUGIN_ABI.to_bytes(4, "little"))
    # A text is serialized with its null.
    values = [(a.name, a.type, a.data.rstrip(b"\0")) for a in attributes]
    assert values == [(a.name, a.type, a.data.rstrip(b"\0")) for a in node.attributes]


def test_values_reach_the_plugin(registry):
    """A flag of 2 and an unknown dtype are refused in the plugins' words."""
    assert registry["invalid"] == [True, True]
    assert "_static: quantize_query: expected 0 or 1, found 2" in registry["stderr"]
    assert "vidc::gelu_quantize: dtype: expected float32 or bfloat16" in registry["stderr"]


@pytest.mark.parametrize("name", NODES)
def test_fields_of_another_abi_are_refused(registry, name):
    another_at_build, another_at_load, none_at_load = registry["refused"][name]
    assert another_at_build
    assert another_at_load
    assert none_at_load
    said = f"[VIDC-KERNEL-ABI] vidc::{name}: vidc_plugin_abi: expected {PLUGIN_ABI}, found "
    assert f"{said}{PLUGIN_ABI + 1}\n" in registry["stderr"]
    assert f"{said}none\n" in registry["stderr"]
