"""PyTorch's values of a graph with 8-bit linear layers and rings, against ONNX Runtime's."""

import torch
import transformer
from interpreted import drawn
from quantized import Quantized

from vidc.compiler.backends import backend
from vidc.compiler.build.program import component_program
from vidc.compiler.config.resolve import resolve
from vidc.compiler.debug.call_inputs import CallInputs
from vidc.compiler.debug.graph import EngineGraph
from vidc.compiler.debug.reference import graph_reference
from vidc.compiler.debug.search import first_wrong, relative_error
from vidc.compiler.quantize.support import ONNX
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import write_weights
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
    quantized = Quantized(transformer.model(), settings.quantization.recipe, ONNX)
    (folder / "exported").mkdir()
    made = quantized.exported(name, "fp32", folder / "exported", onnx=True)
    output = folder / "engine"
    file = output / weights_path("transformer")
    file.parent.mkdir(parents=True)
    write_weights(file, {n: LazyTensor.of(t) for n, t in quantized.state("fp32").items()})
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
    return graph, graph_reference(program, given)


def test_values_of_a_quantized_graph_are_pytorchs(tmp_path):
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
