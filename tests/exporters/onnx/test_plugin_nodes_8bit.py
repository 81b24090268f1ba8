"""8-bit rings and layers in vidc's plugins: TensorRT's graphs against PyTorch's quantized modules.

ONNX's reference evaluates a graph, and the operators compute its plugin nodes on the CPU. So
attributes, the order of inputs, the recipe's scales and the states that nodes write are tested.
"""

from dataclasses import dataclass
from functools import cache

import onnx
import plugin_reference
import pytest
import torch
import transformer
from quantized import Quantized

from vidc.compiler.backends.native_graph import write_graph
from vidc.compiler.backends.plugin_calls import PluginUse
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.support import TENSORRT
from vidc.exporters.onnx.constructs import PADDED_KEYS, UNFUSED
from vidc.plugins.signature import state_output

SIZES = (
    "model.layers=2", "model.dim=128", "model.heads=2", "model.ffn_dim=64",
    "stream.height=16", "stream.width=32", "stream.window=8",
)  # fmt: skip
"""Rings of 8 latent frames, 3 of them a sink, and blocks of 3: every second block wraps inside."""
WRITE, GELU = "qk_norm_rope_ring_write_static", "gelu_quantize"
WIDE, NARROW = "ring_attention_16bit", "ring_attention_8bit"
CASES = {
    "kv-int8": ({WRITE, WIDE}, 0.02),
    "int8-attention": ({WRITE, NARROW}, 0.05),
    "fp8": ({WRITE, NARROW, GELU}, 0.12),
    "kv-fp8": ({WRITE, WIDE}, 0.02),
}
"""Plugins of each recipe's graph, and the largest relative L2: where modules round to 16 bits and a
plugin does not, a value may go to the next 8-bit step, which later layers amplify."""
DEEP = pytest.mark.deep


@dataclass(frozen=True)
class Written:
    """A graph with plugins, the component that it is of, and its weights."""

    graph: object
    component: object
    weights: dict


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    @cache
    def write(recipe):
        folder = tmp_path_factory.mktemp(recipe)
        quantized = Quantized(transformer.model(*SIZES), load_recipe(recipe), TENSORRT)
        exported = quantized.exported("denoise", "fp16", folder, onnx=False)
        use = PluginUse(rings=True, activations=GELU in CASES[recipe][0])
        graph = write_graph(exported, "tensorrt", folder, (PADDED_KEYS, *UNFUSED), use)
        weights = {f"transformer.{name}": t for name, t in quantized.state("fp16").items()}
        return Written(graph, quantized.component("denoise", "fp16"), weights)

    return write


def errors(made, path):
    """Relative L2 of each block's result, and of the values in each ring after the last one."""
    signature, stored = made.component.signature, made.graph.signature
    filled, found = transformer.filled(signature), {}
    eager = {n: torch.zeros_like(v) if n.startswith("ring.") else v for n, v in filled.items()}
    states = {
        spec.name: torch.zeros(spec.shape, dtype=spec.torch_dtype)
        if spec.name.startswith("ring.")
        else filled[spec.name]
        for spec in stored.states
    }
    evaluator = plugin_reference.evaluator(path)
    tokens = signature["ring.k.0"].shape[1] // 8
    for number, block in enumerate(transformer.blocks(signature, position=12 * tokens)):
        every = {n: v.to(signature[n].torch_dtype) for n, v in block.items()} | eager
        with torch.no_grad():
            (flow,) = made.component.module(*(every[s.name] for s in signature.arguments))
        given = made.weights | every | states
        feeds = {n: plugin_reference.to_numpy(given[n]) for n in evaluator.input_names}
        results = dict(zip(evaluator.output_names, evaluator.run(None, feeds), strict=True))
        states |= {
            spec.name: plugin_reference.to_torch(results[state_output(spec.name)])
            for spec in stored.states
            if spec.writes
        }
        found[f"block {number}"] = error(plugin_reference.to_torch(results["flow"]), flow)
    for name in (spec.name for spec in stored.states if spec.rounding is not None):
        values, wanted = (
            of[name].dequantize(at[name], made.weights.__getitem__)
            for of, at in ((stored, states), (signature, eager))
        )
        found[name] = error(values, wanted)
    return found


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize(
    "recipe", [pytest.param(r, marks=DEEP) if r == "kv-fp8" else r for r in CASES]
)
def test_graph_with_plugins_computes_what_the_modules_compute(written, recipe):
    plugins, limit = CASES[recipe]
    made = written(recipe)
    assert set(made.graph.plugins.values()) == plugins
    found = errors(made, made.graph.path)
    assert {f"ring.{side}.{layer}" for side in "kv" for layer in (0, 1)} < found.keys()
    assert {name: e for name, e in found.items() if not e < limit} == {}


@pytest.mark.parametrize("swapped", [("key_scale", "value_scale"), ("cos", "sin")])
def test_swapped_inputs_of_a_plugin_are_noticed(written, tmp_path, swapped):
    made = written("kv-int8")
    model = onnx.load(made.graph.path)
    node = next(node for node in model.graph.node if node.op_type == WRITE)
    tensors = [
        argument.name
        for argument in torch.ops.vidc.qk_norm_rope_ring_write_static.default._schema.arguments
        if "Tensor" in str(argument.type)
    ]
    first, second = (tensors.index(name) for name in swapped)
    node.input[first], node.input[second] = node.input[second], node.input[first]
    onnx.save(model, tmp_path / "swapped.onnx")
    assert errors(made, tmp_path / "swapped.onnx")["ring.k.0"] > 0.1
