"""Layers of plans: of TensorRT-RTX's builder, and of an inspector by a stand-in for the engine."""

import json
import sys
from types import SimpleNamespace

import onnx
import pytest

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends import DEFAULT_OPTIONS
from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.built_layers import (
    Log,
    built_layers,
    inspected_layers,
    new_builder,
)
from vidc.compiler.backends.tensorrt.engine_layers import layers_from_log
from vidc.compiler.backends.tensorrt.network import Network, attention_layers, describe_network
from vidc.compiler.backends.tensorrt.plan import fused_attentions
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.config.targets import targets
from vidc.plugins.errors import UnavailableError

RTX, ENTERPRISE = PRODUCTS["tensorrt_rtx"], PRODUCTS["tensorrt"]
TARGET = targets()["rtx4090"]
ATTENTION = """
<ir_version: 10, opset_import: ["" : 24]>
toy ({dtype}[1, 2, 64, {width}] q, {dtype}[1, 2, 128, {width}] k, {dtype}[1, 2, 128, {width}] v)
 => ({dtype}[1, 2, 64, {width}] y) {{ [attends] y = Attention(q, k, v) }}
"""
ROUNDED = """
<ir_version: 10, opset_import: ["" : 24]>
toy (float[64, 64] x, float[64, 64] w) => (float[64, 64] y)
<float s = {{0.5}}, int8 z = {{0}}> {{
  [before] a = {before}(x)
  [q_x] b = QuantizeLinear(a, s, z)
  [dq_x] c = DequantizeLinear(b, s, z)
  [q_w] d = QuantizeLinear(w, s, z)
  [dq_w] e = DequantizeLinear(d, s, z)
  [product] y = MatMul(c, e)
}}
"""
SAID = {"Layers": [{"Name": "_gemm_mha_v2", "Metadata": "[ONNX Layer: ring]"}], "I/O Tensors": []}


def parsed(text):
    """The network of a graph, whatever it quantizes."""
    module = RTX.module()
    log = Log(module)
    builder = new_builder(module, log)
    definition = builder.create_network(0)
    parser = module.OnnxParser(definition, log.logger)
    assert parser.parse(onnx.parser.parse_model(text).SerializeToString())
    for attention in attention_layers(module, definition):
        attention.decomposable = True
    return Network(builder, definition, log, (parser,))


def built(text):
    """The network's description, the plan and the layers of a graph."""
    network = parsed(text)
    plan = build_plan("toy", network, RTX, TARGET, DEFAULT_OPTIONS)
    return describe_network(network, RTX), plan, built_layers(plan, network.log, RTX)


@pytest.mark.parametrize(("dtype", "width", "fused"), [("float16", 64, 1), ("float16", 384, 0)])
def test_builder_log_names_fused_attention(dtype, width, fused):
    description, plan, layers = built(ATTENTION.format(dtype=dtype, width=width))
    (attention,) = description["attentions"]
    assert attention["name"] == "attends"
    assert layers.fused("attends") is (fused == 1)
    assert sum(layer.is_attention for layer in layers.layers) == fused == fused_attentions(plan)
    assert {layer.kind for layer in layers.layers} & {"kgen", "gemm"}
    assert layers.memory.keys() >= {"activation", "scratch"}


def test_builder_log_names_unfused_q():
    """The operation before another Q is in one kernel with it."""
    description, _, layers = built(ROUNDED.format(before="Relu"))
    assert {"q_x", "q_w", "dq_x", "dq_w"} <= set(description["rounding"])
    apart = layers.apart(frozenset(description["rounding"]))
    assert [layer.nodes for layer in apart] == [("q_w",)]
    assert layers.in_8_bits("product")


def test_incomplete_builder_log_has_no_layers():
    network = parsed(ATTENTION.format(dtype="float16", width=64))
    assert layers_from_log(network.log.engine) is None


class Inspected:
    """A stand-in for the parts of a product that loading a plan takes, which no GPU here has."""

    __version__ = "11.1.0"
    LayerInformationFormat = SimpleNamespace(JSON="json")

    def __init__(self, text):
        module = RTX.module()
        self.ILogger = module.ILogger
        self.text = text

    def Runtime(self, logger):  # noqa: N802 (the product's name)
        inspector = SimpleNamespace(
            get_engine_information=lambda form: self.text if form == "json" else None
        )
        engine = SimpleNamespace(
            create_engine_inspector=lambda: inspector, device_memory_size_v2=2**20
        )

        def deserialize(plan):
            if plan == b"plan":
                return engine
            logger.log(self.ILogger.ERROR, "the plan is for sm80")
            return None

        return SimpleNamespace(deserialize_cuda_engine=deserialize)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "tensorrt", Inspected(json.dumps(SAID)))


@pytest.mark.usefixtures("gpu")
def test_inspector_is_used_if_engine_loads():
    found = inspected_layers(b"plan", ENTERPRISE)
    assert (found.said_by, found.memory) == ("inspector", {"activation": 2**20})
    assert found.fused("ring")
    log = SimpleNamespace(engine=[])
    assert built_layers(b"plan", log, ENTERPRISE) == found


@pytest.mark.usefixtures("gpu")
def test_load_error_has_reason():
    with pytest.raises(UnavailableError, match="the plan is for sm80") as caught:
        inspected_layers(b"another", ENTERPRISE)
    assert caught.value.code == "VIDC-ENGINE-LOAD"
    assert built_layers(b"another", SimpleNamespace(engine=[]), ENTERPRISE) is None


def test_no_engine_is_loaded_without_gpu(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UnavailableError, match="no CUDA device") as caught:
        inspected_layers(b"plan", RTX)
    assert caught.value.code == "VIDC-ENGINE-LOAD"
