"""Layers as inspectors and builders say them: recorded, and of TensorRT-RTX's builder itself."""

import json

import pytest

from vidc.compiler.backends.tensorrt.engine_layers import (
    EngineTensor,
    layers_from_json,
    layers_from_log,
    nodes_of,
)
from vidc.plugins.errors import GateError

SEPARATOR = "\x1f"
ELEVEN = {
    "Layers": [
        {
            "Name": "_gemm_mha_v2_myl0_44",
            "LayerType": "kgen",
            "Inputs": [
                {
                    "Name": "query",
                    "Dimensions": [12, 4680, 128],
                    "Strides": [599040, 128, 1],
                    "StrideOrder": [2, 1, 0],
                    "Datatype": "BFloat16",
                    "Format": "(Linear) Row major linear format",
                }
            ],
            "Constants": [],
            "Outputs": [
                {"Name": "out", "Dimensions": [1, 2], "Datatype": "BFloat16", "Format": "(Linear)"}
            ],
            "TacticName": "_gemm_mha_v2_0x98f1",
            "StreamId": 0,
            "Metadata": f"[ONNX Layer: ring]{SEPARATOR}[ONNX Layer: view]",
        },
        {"Name": "wait^3", "LayerType": "wait", "Inputs": [], "Outputs": [], "TacticName": ""},
    ],
    "I/O Tensors": [],
}
TEN = {
    "Layers": [
        {
            "Name": "conv",
            "LayerType": "CaskConvolution",
            "Inputs": [
                {
                    "Name": "x",
                    "Dimensions": [1, 64, 8, 8],
                    "Format/Datatype": "Thirty-two wide channel vectorized row major Int8 format",
                }
            ],
            "Outputs": [{"Name": "y", "Dimensions": [1, 64], "Format/Datatype": "Half"}],
            "ParameterType": "Convolution",
            "TacticName": "sm80_xmma_fprop",
            "TacticValue": "0x1",
            "Metadata": "[ONNX Layer: /conv1[0]/Conv]\x1e[ONNX Layer: /relu]",
        },
        {
            "Name": "rounds",
            "LayerType": "Reformat",
            "Origin": "QDQ",
            "Inputs": [{"Name": "x", "Dimensions": [1], "Format/Datatype": "FP32"}],
            "Outputs": [{"Name": "y", "Dimensions": [1], "Format/Datatype": "Int8"}],
            "TacticName": "0x0",
        },
    ],
    "Bindings": ["x", "y"],
}
LOG = [
    "Max Scratch Memory: 233902592 bytes",
    "Total Activation Memory: 1024 bytes",
    "Total Weights Memory: 14384 bytes",
    "Layers:\n"
    "Name: entry^bb^wait^3_myl0_4, LayerType: wait, Inputs: [], Constants: [], Outputs: [], "
    "TacticName: , StreamId: 3, EventId: 15, Metadata: \n"
    "Name: node_linear_9_myl0_59, LayerType: gemm, Inputs: [ { Name: (Unnamed Layer* 13) [Cast]_o, "
    "Dimensions: [4680,1536], Strides: [1536,1], StrideOrder: [1,0], Datatype: FP8, "
    "Format: (Linear) Row major linear format }, { Name: blocks.0.weight, Dimensions: [1536,1536], "
    "Strides: [1,1536], StrideOrder: [0,1], Datatype: FP8, Format: (Arbitrary) Format with stride "
    "order = [0,1] }], Constants: [ { Name: a, Dimensions: [1], Strides: [1], StrideOrder: [0], "
    "Datatype: Float, Format: (Linear) Row major linear format }], Outputs: [ { Name: y, "
    "Dimensions: [], Strides: [], StrideOrder: [], Datatype: BFloat16, "
    "Format: (Linear) Row major linear format }], TacticName: __myelin_CASK_STUB, StreamId: 0, "
    f"Metadata: [ONNX Layer: node_linear_9]{SEPARATOR}[ONNX Layer: node_dq]\n"
    "\nI/O Tensors:\n Name: x, IOMode: Input, DataType: Half",
]

HALF = "Dimensions: [1,16,2,64], Datatype: Half, Format: Format not available due to dynamic shapes"
UPDATE = (
    f"Name: write, LayerType: PluginV3, Inputs: [ {{ Name: qkv, Location: Device, {HALF} }}, "
    f"{{ Name: ring.k.0, Location: Device, {HALF} }}], Outputs: [ {{ Name: ring.k.0.out, "
    f'Location: Device, {HALF} }}], PluginType: qk_norm_rope_ring_write, PluginVersion: "1", '
    "PluginMetadata: sink=6,eps=9.99999997e-07, TacticValue: 0x0000000000000000, StreamId: 0, "
    "Metadata: [ONNX Layer: node_write]\n"
)
RENAMED = (
    f"Name: copy, LayerType: NoOp, Inputs: [ {{ Name: x, {HALF} }}], Outputs: [ {{ Name: "
    f"Reformatted x, {HALF} }}], TacticValue: 0x0000000000000000, StreamId: 0, Metadata: \n"
)
COPIED = RENAMED.replace("NoOp", "Reformat")


def test_parses_a_plugin_in_the_builder_log():
    (layer,) = layers_from_log([f"Layers:\n{UPDATE}\n"]).layers
    assert (layer.kind, layer.plugin) == ("PluginV3", "qk_norm_rope_ring_write")
    assert [tensor.name for tensor in layer.inputs] == ["qkv", "ring.k.0"]
    assert [(t.name, t.shape) for t in layer.outputs] == [("ring.k.0.out", (1, 16, 2, 64))]
    assert layer.nodes == ("node_write",)


@pytest.mark.parametrize(
    ("lines", "in_place"),
    [
        (UPDATE, True),
        (UPDATE + RENAMED, True),
        (UPDATE + COPIED, False),
        (UPDATE + UPDATE, False),
        (UPDATE.replace("ring.k.0,", "copied,"), False),
        (UPDATE.replace("ring.k.0.out", "other"), False),
        (UPDATE[: UPDATE.index("PluginType")] + UPDATE[UPDATE.index("TacticValue") :], False),
    ],
    ids=["updated", "renamed", "copied", "twice", "from a copy", "to a copy", "no plugin"],
)
def test_a_state_is_updated_in_place_by_one_plugin_alone(lines, in_place):
    layers = layers_from_log([f"Layers:\n{lines}\n"])
    assert layers.updates_in_place("ring.k.0", "ring.k.0.out") is in_place


def test_parses_inspector_of_tensorrt_11():
    found = layers_from_json(json.dumps(ELEVEN), {"activation": 7})
    attention, waits = found.layers
    assert (found.said_by, found.memory) == ("inspector", {"activation": 7})
    assert attention.inputs == (
        EngineTensor("bf16", (12, 4680, 128), "(Linear) Row major linear format", "query"),
    )
    assert attention.nodes == ("ring", "view")
    assert attention.tactic == "_gemm_mha_v2_0x98f1"
    assert found.kinds == {"kgen": {"bf16": 1}, "wait": {"nothing": 1}}
    assert (found.fused("ring"), found.fused("other")) == (True, False)
    assert not waits.is_attention


def test_parses_inspector_of_tensorrt_10():
    found = layers_from_json(json.dumps(TEN), {})
    convolution, rounds = found.layers
    assert convolution.inputs[0].dtype == "int8"
    assert convolution.inputs[0].format.startswith("Thirty-two wide")
    assert convolution.outputs[0].dtype == "half"
    assert convolution.nodes == ("/conv1[0]/Conv", "/relu")
    assert found.apart(frozenset()) == (rounds,)


def test_a_plan_without_details_has_names_alone():
    found = layers_from_json('{"Layers": ["first + second"], "Bindings": []}', {})
    assert found.layers[0].name == "first + second"
    assert found.kinds == {"not said": {"nothing": 1}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"Layers": [1]}',
        '{"Layers": [{}]}',
        '{"Layers": [{"Name": "\\u001b[2J"}]}',
        '{"Layers": [{"Name": "a", "Inputs": [{"Dimensions": ["x"]}]}]}',
        "[" * 10**5,
    ],
)
def test_rejects_text_without_layers(text):
    with pytest.raises(GateError) as caught:
        layers_from_json(text, {})
    assert caught.value.code == "VIDC-BUNDLE-MALFORMED"


def test_parses_builder_log():
    found = layers_from_log(LOG)
    waits, product = found.layers
    assert found.said_by == "builder"
    assert found.memory == {"scratch": 233902592, "activation": 1024, "weights": 14384}
    assert (waits.kind, waits.inputs, waits.nodes) == ("wait", (), ())
    assert [(t.dtype, t.shape) for t in product.inputs] == [
        ("fp8", (4680, 1536)),
        ("fp8", (1536, 1536)),
    ]
    assert product.outputs == (EngineTensor("bf16", (), "(Linear) Row major linear format", "y"),)
    assert product.nodes == ("node_linear_9", "node_dq")
    assert (found.in_8_bits("node_linear_9"), found.in_8_bits("node_linear_8")) == (True, False)


@pytest.mark.parametrize(
    "log",
    [
        [],
        LOG[:3],
        ["Layers:\nLayer(kgen): a, Tactic: 0x1, x -> y"],
        [text.replace("node_linear_9_myl0_59", "bell\x07") for text in LOG],
        [text.replace("Dimensions: [],", "Dimensions: [-],") for text in LOG],
    ],
    ids=["nothing", "no layers", "other words", "not printable", "no number"],
)
def test_unknown_builder_log_has_no_layers(log):
    assert layers_from_log(log) is None


def test_finds_layers_that_only_quantize():
    layers = layers_from_log(LOG)
    (product,) = layers.apart(frozenset({"node_linear_9", "node_dq", "more"}))
    assert product.name == "node_linear_9_myl0_59"
    assert layers.apart(frozenset({"node_dq"})) == ()


def test_nodes_are_named_once():
    assert nodes_of("[ONNX Layer: a][ONNX Layer: b[1]]\x1e[ONNX Layer: a]") == ("a", "b[1]")
    assert nodes_of("") == ()
