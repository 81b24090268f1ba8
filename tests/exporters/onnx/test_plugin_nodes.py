"""The ring in vidc's plugins: graphs with their nodes, computed by the operators' references."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
import transformer
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from quantized import Quantized

from vidc.compiler.backends.native_graph import write_graph
from vidc.compiler.backends.plugin_calls import PluginUse
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.support import TENSORRT
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.onnx.constructs import PADDED_KEYS, UNFUSED
from vidc.exporters.onnx.lint import lint
from vidc.exporters.onnx.plugin_nodes import refusal
from vidc.exporters.program import export_program, save_program
from vidc.plugins.ops.qk_norm_rope_ring_write import qk_norm_rope_ring_write
from vidc.plugins.ops.ring_attention_16bit import ring_attention_16bit
from vidc.plugins.signature import state_output

OPERATORS = {
    each.name().removeprefix("vidc::"): each
    for each in (qk_norm_rope_ring_write, ring_attention_16bit)
}
NUMBERS = ("int", "float", "bool", "str")
LAYERS = 2
STRADDLING = (
    f"model.layers={LAYERS}", "model.dim=128", "model.heads=2", "model.ffn_dim=64",
    "stream.height=16", "stream.width=32", "stream.window=8",
)  # fmt: skip
"""Rings of 8 latent frames, 3 of them a sink, and blocks of 3: every second block wraps inside."""
FOUR_HEADS = tuple(a.replace("heads=2", "heads=4") for a in STRADDLING)
"""The same with a head size of 32."""


@pytest.fixture(scope="module")
def model():
    return transformer.model(*STRADDLING)


@pytest.fixture(scope="module")
def written(model, tmp_path_factory):
    """A component's graph with plugins, and the program that it is of."""
    made = {}

    def written(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            component = model.component(name, "fp16")
            program = export_program(component)
            exported = ExportedComponent(name, folder, component.signature, component.aligned)
            save_program(program, exported.program)
            handled = (PADDED_KEYS, *UNFUSED)
            made[name] = (
                program,
                write_graph(exported, "tensorrt", folder, handled, PluginUse(rings=True)),
            )
        return made[name]

    return written


def plugin_nodes(path):
    return [node for node in ir.load(path).graph.all_nodes() if node.domain == "vidc"]


@pytest.mark.parametrize(("name", "last"), [("denoise", 0), ("kv_update", 1), ("recache_6", 1)])
def test_each_layer_writes_and_reads_its_ring_by_plugins(written, name, last):
    """The last of a clean pass writes, and attends to nothing."""
    _, graph = written(name)
    found = [node.op_type for node in plugin_nodes(graph.path)]
    write, attend = "qk_norm_rope_ring_write", "ring_attention_16bit"
    assert found == [write, attend] * (LAYERS - last) + [write] * last
    assert graph.notes == ()
    in_place = {s.name for s in graph.signature.states if s.in_place}
    rings = {f"ring.{part}.{layer}" for part in "kv" for layer in range(LAYERS)}
    assert {state for state in in_place if state.startswith("ring.")} == rings
    assert all(state.axes is None for state in graph.signature.states)


def test_a_node_has_what_the_operator_takes_and_where_its_plugin_is(written):
    for node in plugin_nodes(written("denoise")[1].path):
        arguments = OPERATORS[node.op_type]._schema.arguments
        numbers = {a.name for a in arguments if str(a.type) in NUMBERS}
        assert len(node.inputs) == len(arguments) - len(numbers)
        assert set(node.attributes) == numbers | {"plugin_version", "plugin_namespace"}
        assert node.attributes["plugin_version"].as_string() == "1"
        assert node.attributes["plugin_namespace"].as_string() == "vidc"
    onnx.checker.check_model(onnx.load(written("denoise")[1].path))


def test_other_parsers_refuse_the_graph(written):
    model = ir.load(written("denoise")[1].path)
    for parser in ("tensorrt_rtx", "onnxruntime", "onnxruntime_cuda"):
        assert "custom-operator" in " ".join(f.construct.code for f in lint(model, parser))


class _RingWrite(OpRun):
    op_domain = "vidc"

    def _run(self, *inputs, sink, eps, **_):
        given = [torch.from_numpy(np.array(value)) for value in inputs]
        query = qk_norm_rope_ring_write(*given, sink, eps)
        return query.numpy(), given[-2].numpy(), given[-1].numpy()


class _RingAttention(OpRun):
    op_domain = "vidc"

    def _run(self, *inputs, **_):
        given = [torch.from_numpy(np.array(value)) for value in inputs]
        return (ring_attention_16bit(*given).numpy(),)


_RingWrite.__name__, _RingAttention.__name__ = OPERATORS


def test_plugin_form_matches_the_program_across_the_wrap(model, written):
    """By ONNX's reference, with the operators' references for the plugins."""
    program, graph = written("denoise")
    signature = graph.signature
    evaluator = ReferenceEvaluator(
        onnx.load(graph.path), new_ops=[_RingWrite, _RingAttention], verbose=0
    )
    weights = {f"transformer.{name}": value.half().numpy() for name, value in model.weights.items()}
    given = {name: weights[name] for name in evaluator.input_names if name in weights}
    states = transformer.filled(model.component("denoise", "fp16").signature)
    module, eager = program.module(), {name: value.clone() for name, value in states.items()}
    tokens = states["ring.k.0"].shape[1] // 8
    for block in transformer.blocks(signature, position=12 * tokens):
        block = {name: value.to(signature[name].torch_dtype) for name, value in block.items()}
        every = block | eager
        (flow,) = module(*(every[spec.name] for spec in signature.arguments))
        feeds = {n: v.numpy() for n, v in (block | states).items() if n in evaluator.input_names}
        found = dict(zip(evaluator.output_names, evaluator.run(None, given | feeds), strict=True))
        states |= {
            s.name: torch.from_numpy(found[state_output(s.name)])
            for s in signature.states
            if s.writes
        }
        assert_near(torch.from_numpy(found["flow"]), flow)
    for name, value in eager.items():
        assert_near(states[name], value)


def assert_near(found, expected):
    error = (found.float() - expected.float()).norm() / expected.float().norm()
    assert error < 3e-3


@pytest.mark.parametrize(
    ("assignments", "precision", "reason"),
    [
        (STRADDLING, "fp32", "query: expected bfloat16 or float16, found float32"),
        (FOUR_HEADS, "fp16", "a head size of 64 or 128"),
    ],
)
def test_sizes_without_a_kernel_are_named(assignments, precision, reason):
    component = transformer.model(*assignments).component("denoise", precision)
    assert reason in (refusal(component.signature) or "")


def test_a_component_without_a_ring_says_so(model):
    assert refusal(model.component("text_kv", "fp16").signature) == "it has no ring"


def test_quantized_projections_are_laid_side_by_side(model, tmp_path):
    quantized = Quantized(model, load_recipe("int8-static"), TENSORRT)
    exported = quantized.exported("denoise", "fp32", tmp_path, onnx=False)
    graph = write_graph(
        exported, "tensorrt", tmp_path, (PADDED_KEYS, *UNFUSED), PluginUse(rings=True)
    )
    assert len(graph.quantized) == 8 * LAYERS
    assert all(graph.quantized.values())
    assert len(plugin_nodes(graph.path)) == 2 * LAYERS
