import json
import subprocess
import sys

import onnx
import onnx_ir as ir
import pytest
import torch
from tensors import random_inputs

from vidc.exporters.checkpoint.write import weight_layout
from vidc.exporters.onnx.export import OPSET, export_onnx
from vidc.exporters.program import export_program, save_program
from vidc.plugins.signature import state_output

CASES = [
    pytest.param({"window": 6, "batch": 2}, 1e-4, id="window-6-batch-2"),
    pytest.param({"window": 8}, 1e-4, id="window-8", marks=pytest.mark.deep),
    pytest.param({"window": 8, "dtype": torch.float16}, 1e-2, id="window-8-fp16"),
]


def relative_l2(found, expected) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


class Both:
    """Runs a component eagerly and by ONNX Runtime, each on states of its own."""

    def __init__(self, export, run_onnx, sizes, tolerance) -> None:
        self.export = export
        self.run_onnx = run_onnx
        self.sizes = sizes
        self.tolerance = tolerance
        self.eager: dict[str, torch.Tensor] = {}
        self.onnx: dict[str, torch.Tensor] = {}

    def run(self, name: str, **inputs: torch.Tensor) -> None:
        exported = self.export(name, **self.sizes)
        signature = exported.component.signature
        for state in signature.states:
            for states in (self.eager, self.onnx):
                states.setdefault(state.name, torch.zeros(state.shape, dtype=state.torch_dtype))
        arguments = [inputs.get(t.name, self.eager.get(t.name)) for t in signature.arguments]
        outputs = exported.component.module(*arguments)
        results = self.run_onnx(exported.path, signature, inputs | self.onnx)
        self.onnx |= {
            state.name: results[state_output(state.name)]
            for state in signature.states
            if state.writes
        }
        for spec, expected in zip(signature.outputs, outputs, strict=True):
            assert relative_l2(results[spec.name], expected) < self.tolerance, spec.name
        for state in signature.states:
            error = relative_l2(self.onnx[state.name], self.eager[state.name])
            assert error < self.tolerance, (name, state.name)


@pytest.mark.parametrize(("sizes", "tolerance"), CASES)
def test_onnxruntime_matches_the_module_across_the_wrap(
    export, run_onnx, make_wan, sizes, tolerance
):
    torch.manual_seed(1)
    config = make_wan(**sizes).config
    block = config.stream.block * config.frame_tokens
    window = config.stream.window * config.frame_tokens
    both = Both(export, run_onnx, sizes, tolerance)
    text = export("text_kv", **sizes).component.signature
    both.run("text_kv", text_embeds=torch.randn(text["text_embeds"].shape))
    signature = export("denoise", **sizes).component.signature
    for index in range(4):
        position, valid = index * block, min((index + 1) * block, window)
        both.run("denoise", **random_inputs(signature, position, valid, 750.0))
        both.run("kv_update", **random_inputs(signature, position, valid, 0.0))
    assert position + block > window

    frames = config.transformer_part.recache_frames[-1]
    name, tokens = f"recache_{frames}", frames * config.frame_tokens
    signature = export(name, **sizes).component.signature
    both.run(name, **random_inputs(signature, 4 * block - tokens, window, 0.0))


@pytest.mark.parametrize("name", ["text_kv", "denoise", "kv_update", "recache_6"])
def test_names_shapes_and_dtypes_are_those_of_the_signature(export, name):
    exported = export(name, window=6, batch=2)
    signature, graph = exported.component.signature, exported.model.graph
    assert tuple(value.name for value in graph.inputs) == signature.graph_inputs()
    assert tuple(value.name for value in graph.outputs) == signature.graph_outputs()
    for value in (*graph.inputs, *graph.outputs):
        spec = signature[value.name.removesuffix(".out")]
        assert tuple(value.shape) == spec.shape
        assert value.dtype == ir.tensor_adapters.from_torch_dtype(spec.torch_dtype)


def test_every_weight_refers_to_its_place_in_the_weights_file(export, make_wan):
    exported = export("denoise", window=6, batch=2)
    weights = make_wan(window=6, batch=2).network.state_dict()
    layout = weight_layout(weights)
    stored = exported.path.parent / "weights" / "transformer.safetensors"
    external = {
        value.name: value.const_value
        for value in exported.model.graph.initializers.values()
        if isinstance(value.const_value, ir.ExternalTensor)
    }
    # Cross-attention takes its keys and values from states.
    of_text = ("text_embedder", "attn2.to_k", "attn2.to_v", "attn2.norm_k")
    used = {name for name in weights if not any(part in name for part in of_text)}
    assert set(external) == {f"transformer.{name}" for name in used}
    for name in used:
        tensor = external[f"transformer.{name}"]
        assert (tensor.offset, tensor.length) == (layout[name].offset, layout[name].nbytes)
        assert str(tensor.location) == f"weights/{stored.name}"
        torch.testing.assert_close(torch.from_numpy(tensor.numpy().copy()), weights[name])
    assert exported.path.stat().st_size < 200_000


def test_fused_operators_survive(export):
    nodes = [node.op_type for node in export("denoise", window=6, batch=2).model.graph]
    assert nodes.count("Attention") == 4
    assert nodes.count("RMSNormalization") == 6
    assert nodes.count("LayerNormalization") == 7
    assert nodes.count("Gelu") == 2
    assert nodes.count("ScatterND") == 4
    assert not {"Softmax", "Erf", "Tanh", "Range", "Shape", "Identity"} & set(nodes)


def test_linears_take_their_weights_as_they_are_stored(export):
    """A transposed weight would be a copy in every engine that folds constants."""
    graph = export("denoise", window=6, batch=2).model.graph
    linears = [node for node in graph if node.op_type == "Gemm"]
    assert len(linears) == 21
    assert all(node.attributes.get_int("transB", 0) == 1 for node in linears)
    weights = [value for name, value in graph.initializers.items() if name.startswith("transf")]
    readers = {use.node.op_type for value in weights for use in value.uses()}
    assert not readers & {"Transpose", "MatMul", "Cast"}


def test_only_standard_operators_are_used(export):
    model = export("denoise", window=6, batch=2).model
    assert model.opset_imports == {"": OPSET}
    assert {node.domain for node in model.graph} == {""}
    assert not model.functions


def test_bf16_is_exported(export):
    exported = export("denoise", dtype=torch.bfloat16)
    onnx.checker.check_model(exported.path, full_check=True)
    attention = [node for node in exported.model.graph if node.op_type == "Attention"]
    assert {node.inputs[0].dtype for node in attention} == {ir.DataType.BFLOAT16}


EXPORT_AGAIN = """
import json, sys
from pathlib import Path
import vidc.plugins.ops.ring
from vidc.exporters.checkpoint.write import weight_layout
from vidc.exporters.onnx.export import export_onnx
from vidc.exporters.program import load_program
from vidc.plugins.signature import Signature
folder = Path(sys.argv[1])
program = load_program(folder / "denoise.pt2")
signature = Signature.from_json(json.loads((folder / "signature.json").read_text()))
weights = {k.partition(".")[2]: w for k, w in program.state_dict.items()}
placements = {"transformer": weight_layout(weights)}
export_onnx("denoise", program, signature, placements, folder / "denoise.onnx")
"""


def test_a_saved_program_gives_the_same_bytes_in_another_process(export, tmp_path):
    exported = export("denoise", window=6, batch=2)
    signature = exported.component.signature
    save_program(export_program(exported.component), tmp_path / "denoise.pt2")
    (tmp_path / "signature.json").write_text(json.dumps(signature.to_json()))
    command = [sys.executable, "-c", EXPORT_AGAIN, str(tmp_path)]
    subprocess.run(command, check=True, env={"PYTHONHASHSEED": "3", "OMP_NUM_THREADS": "1"})
    assert (tmp_path / "denoise.onnx").read_bytes() == exported.path.read_bytes()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({}, "is in none of the files"),
        ({"dtype": torch.float16}, "FLOAT16"),
    ],
)
def test_weights_that_do_not_fit_the_graph_are_refused(make_wan, tmp_path, weights, message):
    component = make_wan().components["text_kv"]
    placements = {}
    if weights:
        network = make_wan(**weights, device="meta").network
        placements = {"transformer": weight_layout(network.state_dict())}
    path = tmp_path / "text_kv.onnx"
    with pytest.raises(ValueError, match=message):
        export_onnx("text_kv", export_program(component), component.signature, placements, path)
    assert not path.exists()
