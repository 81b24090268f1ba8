"""PyTorch's values of graphs whose Linears and rings are in 8 bits, beside ONNX Runtime's."""

from dataclasses import replace

import torch
import transformer
from interpreted import drawn
from quantized import calibration

from vidc.compiler.backends import backend
from vidc.compiler.build.program import component_program
from vidc.compiler.config.resolve import resolve
from vidc.compiler.debug.call_inputs import CallInputs
from vidc.compiler.debug.graph import EngineGraph
from vidc.compiler.debug.reference import graph_reference
from vidc.compiler.debug.search import first_wrong, relative_error
from vidc.compiler.quantize import graphs
from vidc.compiler.quantize.attention import attention_weights, quantized_attention
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.quantize.support import ONNX
from vidc.compiler.quantize.weights import quantized_weights
from vidc.exporters.checkpoint import write_weights
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.export import export_component
from vidc.plugins.names import weights_path
from vidc.runtime.engines.onnxruntime import Options
from vidc.runtime.weights import Weights

RECIPE = """
description = "Linears and rings"
[[linear]]
layers = ["blocks.*.attn1.**", "blocks.*.attn2.**"]
weights = "int8"
activations = "int8"
scale = "static"
smooth = 0.8
[[linear]]
layers = ["blocks.*.ffn.**"]
weights = "int8"
[[attention]]
layers = ["blocks.*.attn1"]
keys = "int8"
values = "int8"
scale = "static"
center = true
"""
LIMIT = 2e-2
"""Behind the first layer a value that lies between two steps may go to either."""


def looked(recipe, name, folder):
    """A component's graph with its weights beside it, and PyTorch's values of it."""
    settings = resolve("tiny", gpu="cpu", precision="int8", recipe=recipe, environ={})
    rules, model = settings.quantization.recipe, settings.model
    linears = quantized_linears(rules, model, ONNX)
    attentions = quantized_attention(rules, model, ONNX)
    weights = transformer.model().weights
    (folder / "exported").mkdir()
    exported = export_component(model.parts["transformer"], "fp32", name, folder / "exported")
    (folder / "made").mkdir()
    made = graphs.write(
        exported, replace(exported, folder=folder / "made"), "transformer", weights, linears,
        attentions,
    )  # fmt: skip
    ranges = calibration(model, reach=3.0)
    stored = {key: LazyTensor.of(tensor) for key, tensor in weights.items()}
    narrow = quantized_weights(stored, linears, ranges, ONNX)
    output = folder / "engine"
    file = output / weights_path("transformer")
    file.parent.mkdir(parents=True)
    write_weights(file, narrow | attention_weights(attentions, ranges))
    engine = backend("onnxruntime").compile(made, settings.target, {}, output)

    program = component_program(settings, name)
    assert program.signature == made.signature
    kept = drawn(made.signature)
    unread = {s.name: torch.zeros(s.shape) for s in made.signature.states if not s.reads}
    weights = Weights({"transformer": file}, torch.device("cpu"))
    given = CallInputs(kept, unread | kept, weights)
    options = Options(**engine.options)
    graph = EngineGraph(
        output / engine.files[0], options.session_options(), kept, engine.signature.graph_outputs()
    )
    return graph, graph_reference(settings, program, given)


def test_values_of_a_graph_in_8_bits_are_pytorchs(tmp_path):
    recipe = tmp_path / "both.toml"
    recipe.write_text(RECIPE)
    graph, reference = looked(str(recipe), "kv_update", tmp_path)
    shared = [name for name in graph.names if name in reference.names]
    assert len(shared) > 40
    found, expected = graph.values(shared), reference.values(shared)
    errors = {
        name: relative_error(found[name], expected[name])
        for name in shared
        if found[name].shape == expected[name].shape
    }
    assert len(errors) > 40
    assert max(errors.values()) < LIMIT
    assert first_wrong(graph, reference, shared, LIMIT) is None
