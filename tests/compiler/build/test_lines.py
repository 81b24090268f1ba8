import pickle
import re

import onnx_ir as ir
import pytest
import torch

from vidc.compiler.backends import GraphError, backend
from vidc.compiler.backends.graph_values import values_of
from vidc.compiler.backends.native_graph import write_graph
from vidc.compiler.build.lines import naming_lines
from vidc.compiler.config.resolve import resolve
from vidc.exporters.export import export_component
from vidc.exporters.onnx.constructs import PADDED_KEYS, UNFUSED
from vidc.exporters.onnx.native_ring import NATIVE
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.ring import ring_attention

ONE = ("model.layers=1",)
SETTINGS = resolve("tiny", gpu="rtx4090", precision="fp16", assignments=ONE, environ={})
ON_CPU = resolve("tiny", gpu="cpu", assignments=ONE, environ={})


def complaint(*values):
    error = GraphError("VIDC-TENSORRT-PARSE", "denoise: no", "try", "denoise", values)
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("layer_norm_1", "layer_norm(x, self.eps, self.norm2)"),
        # The second of a layer's attentions: ONNX has the first one as it is.
        ("scaled_dot_product_attention", "padded_attention(queries, "),
    ],
)
def test_the_line_of_a_value_is_named(value, code):
    line = r"no; it comes from .*layers\.py:\d+: "
    with pytest.raises(BuildError, match=line) as caught, naming_lines(SETTINGS):
        raise complaint(value)
    assert code in caught.value.message
    assert (caught.value.code, caught.value.hint) == ("VIDC-TENSORRT-PARSE", "try")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("denoise")
    return export_component(SETTINGS.model.parts["transformer"], "fp16", "denoise", folder)


@pytest.fixture(scope="module")
def graph(exported, tmp_path_factory):
    folder = tmp_path_factory.mktemp("graph")
    return write_graph(exported, "tensorrt_rtx", folder, (PADDED_KEYS, *UNFUSED)).path


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("Sigmoid", "self.activation("),
        ("TensorScatter", "_write_ring("),
        ("Attention", "ring.attend("),
    ],
)
def test_a_node_that_pytorch_has_no_value_of_gets_its_operators_line(graph, kind, code):
    model = ir.load(graph)
    node = next(node for node in model.graph.all_nodes() if node.op_type == kind)
    with pytest.raises(BuildError, match="; it comes from ") as caught, naming_lines(SETTINGS):
        raise complaint(*values_of(model, node.name))
    assert code in caught.value.message.lower()


def test_a_graph_that_lint_refuses_for_a_gpu_names_the_line(exported, tmp_path):
    with pytest.raises(BuildError) as caught, naming_lines(SETTINGS):
        write_graph(exported, "tensorrt_rtx", tmp_path)
    assert caught.value.code == "VIDC-EXPORT-LINT"
    assert caught.value.message.startswith("denoise: tensorrt_rtx would not compute denoise")
    assert "attention-padded-keys" in caught.value.message
    assert re.search(r"; it comes from .*layers\.py:\d+: .*ring\.attend\(", caught.value.message)


def test_what_a_real_parser_refuses_is_named_with_node_and_line(exported, tmp_path, monkeypatch):
    pytest.importorskip("tensorrt_rtx")

    def unknown_to_it(query, key_cache, value_cache, valid_length):
        return torch.onnx.ops.symbolic(
            "Bernoulli", (query,), dtype=query.dtype, shape=query.shape, version=22
        )

    monkeypatch.setitem(NATIVE, ring_attention, unknown_to_it)
    with pytest.raises(BuildError) as caught, naming_lines(SETTINGS):
        backend("tensorrt").compile(exported, SETTINGS.target, {}, tmp_path)
    assert caught.value.code == "VIDC-TENSORRT-PARSE"
    message = caught.value.message
    assert re.match(r"denoise: TensorRT-RTX 1\.\S+ does not parse its graph at node '", message)
    assert "(Bernoulli)" in message
    assert re.search(r"; it comes from .*layers\.py:\d+: .*ring\.attend\(", message)


def test_a_graph_that_lint_refuses_for_a_cpu_names_the_line(tmp_path):
    component = export_component(ON_CPU.model.parts["transformer"], "bf16", "denoise", tmp_path)
    output = tmp_path / "engine"
    output.mkdir()
    with pytest.raises(BuildError) as caught, naming_lines(ON_CPU):
        backend("onnxruntime").compile(component, ON_CPU.target, {}, output)
    assert caught.value.code == "VIDC-EXPORT-LINT"
    assert "attention-bf16" in caught.value.message
    assert re.search(r"; it comes from .*\.py:\d+: .*ring\.attend\(", caught.value.message)


@pytest.mark.parametrize("values", [(), ("absent",)])
def test_a_value_without_a_line_is_left_alone(values):
    with pytest.raises(BuildError) as caught, naming_lines(SETTINGS):
        raise complaint(*values)
    assert caught.value.message == "denoise: no"


def test_values_of_a_quantized_graph_have_their_own_lines():
    """Rounding puts operations before and behind every Linear, and numbers go on behind them."""
    value = "_symbolic_20"
    with pytest.raises(BuildError) as caught, naming_lines(SETTINGS):
        raise complaint(value)
    assert caught.value.message == "denoise: no"
    quantized = resolve("tiny", gpu="rtx4090", precision="fp8", assignments=ONE, environ={})
    with pytest.raises(BuildError) as caught, naming_lines(quantized):
        raise complaint(value)
    assert "no; it comes from " in caught.value.message
    assert "layers.py:" in caught.value.message
