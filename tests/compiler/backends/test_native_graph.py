import onnx_ir as ir
import pytest
import torch

from vidc.compiler.backends.native_graph import write_graph
from vidc.compiler.backends.onnxruntime.backend import OnnxRuntimeBackend
from vidc.compiler.config.resolve import resolve
from vidc.exporters.export import export_component
from vidc.exporters.onnx import native_ring
from vidc.exporters.onnx.constructs import PADDED_KEYS, UNFUSED
from vidc.exporters.onnx.lint import lint
from vidc.plugins.errors import BuildError, UnavailableError
from vidc.plugins.ops.ring import ring_attention

HANDLED = (PADDED_KEYS, *UNFUSED)
SMALL = ("model.layers=1", "stream.height=16", "stream.width=32")


def exported(folder, window):
    assignments = (*SMALL, f"stream.window={window}")
    config = resolve("tiny", gpu="cpu", assignments=assignments, environ={}).model
    return export_component(config.parts["transformer"], "fp16", "denoise", folder)


def test_a_ring_that_straddles_its_wrap_is_copied(tmp_path):
    straddling = write_graph(exported(tmp_path, window=8), "tensorrt_rtx", tmp_path, HANDLED)
    assert straddling.ring_attention == frozenset()
    assert not any(s.in_place or s.axes for s in straddling.signature.states)


def test_aligned_ring_is_updated_in_place(tmp_path):
    component = exported(tmp_path, window=9)
    aligned = write_graph(component, "tensorrt_rtx", tmp_path, HANDLED)
    rings = [s for s in aligned.signature.states if s.name.startswith("ring.")]
    assert len(aligned.ring_attention) == 1
    assert all(s.in_place and s.axes == (0, 2, 1, 3) for s in rings)
    stated = component.signature[rings[0].name].shape
    assert rings[0].shape == (stated[0], stated[2], stated[1], stated[3])


def test_rejects_unsupported_operator_before_rtx_parser(tmp_path, monkeypatch):
    def plugin(query, key_cache, value_cache, valid_length):
        return torch.onnx.ops.symbolic(
            "vidc::ring_attention",
            (query, key_cache, value_cache, valid_length),
            dtype=query.dtype,
            shape=query.shape,
            version=1,
        )

    with_plugin = {**native_ring.NATIVE, ring_attention: plugin}
    monkeypatch.setattr(native_ring, "NATIVE", with_plugin)
    component = exported(tmp_path, window=9)
    with pytest.raises(
        BuildError, match=r"tensorrt_rtx would not compute denoise.*custom-operator-plugin"
    ) as e:
        write_graph(component, "tensorrt_rtx", tmp_path, HANDLED)
    assert e.value.code == "VIDC-EXPORT-LINT"
    assert "needs a plugin, and this network calls none" in e.value.message


def test_onnxruntime_graph_has_supported_nodes_only(tmp_path):
    settings = resolve("tiny", gpu="t4", precision="fp16", assignments=SMALL, environ={})
    component = export_component(settings.model.parts["vae"], "fp16", "vae_decode", tmp_path)
    graph = write_graph(component, "onnxruntime_cuda", tmp_path)
    assert lint(ir.load(graph.path), "onnxruntime_cuda") == []


@pytest.mark.parametrize(
    "name",
    [
        "image_encoder",
        "vae_encode",
        pytest.param("condition_clip", marks=pytest.mark.deep),
        pytest.param("denoise", marks=pytest.mark.deep),
        "vae_decode",
    ],
)
def test_onnxruntime_for_a_t4_has_supported_nodes_only(name, tmp_path):
    """Stable Video Diffusion in fp16; its image is encoded in float32."""
    settings = resolve(
        "svd-tiny", gpu="t4", precision="fp16", backend="onnxruntime",
        assignments=("model.layers=1",), environ={},
    )  # fmt: skip
    assert (settings.backend, {*settings.precision.values()}) == ("onnxruntime", {"fp16"})
    part = settings.model.parts[settings.model.components[name]]
    component = export_component(part, "fp16", name, tmp_path)
    backend = OnnxRuntimeBackend()
    assert backend.cross_compiles(settings.target)
    (tmp_path / "output").mkdir()
    engine = backend.compile(component, settings.target, {}, tmp_path / "output")
    assert engine.options["weights_given"]
    model = ir.load(tmp_path / "output" / engine.files[0])
    assert lint(model, "onnxruntime_cuda") == []
    assert {node.domain for node in model.graph.all_nodes()} == {""}
    products = {
        node.inputs[1].dtype
        for node in model.graph.all_nodes()
        if node.op_type in ("Conv", "Gemm", "MatMul")
    }
    assert (ir.DataType.FLOAT16 in products) == (name != "vae_encode")


def test_onnxruntime_has_no_int8_for_a_t4():
    with pytest.raises(UnavailableError, match="VIDC-BACKEND-PRECISION") as caught:
        resolve("svd-t4", gpu="t4", precision="int8", backend="onnxruntime", environ={})
    assert "--backend tensorrt" in caught.value.hint


def test_onnxruntime_computes_activations_in_float32(tmp_path):
    settings = resolve("tiny", gpu="h200", precision="fp16", assignments=SMALL, environ={})
    component = export_component(settings.model.parts["transformer"], "fp16", "denoise", tmp_path)
    graph = write_graph(component, "onnxruntime_cuda", tmp_path)
    nodes = list(ir.load(graph.path).graph.all_nodes())
    activations = [node for node in nodes if node.op_type in ("Gelu", "Sigmoid")]
    assert {node.op_type for node in activations} == {"Gelu", "Sigmoid"}
    for node in activations:
        cast = node.inputs[0].producer()
        assert cast.op_type == "Cast"
        assert cast.attributes["to"].as_int() == ir.DataType.FLOAT
