"""ONNX Runtime's form of quantized modules: what it fuses and computes."""

from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformer
from quantized import Quantized

from vidc.compiler.config.recipe import AttentionFormat, LinearFormat, Recipe, Rule
from vidc.compiler.quantize.support import ONNX
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.write import write_weights
from vidc.exporters.onnx.states import aliasable_states
from vidc.plugins.signature import state_output

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=128", "stream.height=32")
LAYERS = 2
LINEARS = {"text_kv": 2 * LAYERS, "denoise": 8 * LAYERS, "kv_update": 8 * LAYERS - 6}
INPUTS = {"text_kv": LAYERS, "denoise": 6 * LAYERS, "kv_update": 6 * LAYERS - 5}
"""Quantized inputs: queries, keys and values of self-attention share one."""
STATIC = LinearFormat("int8", "int8")
IN_BLOCKS = ("blocks.*.attn1.**", "blocks.*.attn2.**", "blocks.*.ffn.**")
WITHOUT_VNNI = "session.x64quantprecision"
BLOCKS = 5
"""More than a window holds, so that every slot is written."""


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


def recipe_of(linear=STATIC, attention=None):
    linears = () if linear is None else (Rule(IN_BLOCKS, linear),)
    rings = () if attention is None else (Rule(("blocks.*.attn1",), attention),)
    return Recipe("mine", "d", linears, rings)


class Session:
    """A component in ONNX Runtime, as a bundle has it, and its eager modules."""

    def __init__(self, model, recipe, name, folder, config=None):
        quantized = Quantized(model, recipe, ONNX)
        self.component = quantized.component(name)
        self.signature = self.component.signature
        self.weights = quantized.weights
        self.exported = quantized.exported(name, "fp32", folder, onnx=True)
        (folder / "weights").mkdir()
        stored = {n: LazyTensor.of(tensor) for n, tensor in quantized.state("fp32").items()}
        write_weights(folder / "weights/transformer.safetensors", stored)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        if config is not None:
            options.add_session_config_entry(config, "1")
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        path = self.exported.onnx
        self._session = onnxruntime.InferenceSession(
            path, options, providers=["CPUExecutionProvider"]
        )
        optimized = onnx.load(folder / "optimized.onnx", load_external_data=False)
        self.kinds = Counter(node.op_type for node in optimized.graph.node)

    def run(self, given):
        """Returns outputs and new states by name."""
        names = [output.name for output in self._session.get_outputs()]
        arguments = {i.name: given[i.name].numpy() for i in self._session.get_inputs()}
        values = map(torch.from_numpy, self._session.run(names, arguments))
        return dict(zip(names, values, strict=True))


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def text_error(model, recipe, folder, config=None):
    """The error of the keys of the text to the eager modules', and the session."""
    session = Session(model, recipe, "text_kv", folder, config)
    generator = torch.Generator().manual_seed(3)
    given = {
        spec.name: torch.randn(spec.shape, generator=generator) for spec in session.signature.inputs
    }
    states = {spec.name: torch.zeros(spec.shape) for spec in session.signature.states}
    with torch.no_grad():
        session.component.module(*((given | states)[s.name] for s in session.signature.arguments))
    found = session.run(given | states)
    return max(error(found[state_output(n)], value) for n, value in states.items()), session


@pytest.mark.parametrize("name", LINEARS)
def test_every_quantized_matmul_is_one_of_integers(model, tmp_path, name):
    kinds = Session(model, recipe_of(), name, tmp_path).kinds
    assert kinds["QGemm"] == LINEARS[name]
    assert kinds["QuantizeLinear"] == INPUTS[name]
    assert kinds["DequantizeLinear"] == 0


@pytest.mark.parametrize("config", [None, WITHOUT_VNNI])
@pytest.mark.parametrize(
    "changes", [{}, {"smooth": 0.8}, {"center": True}, {"smooth": 0.8, "center": True}], ids=str
)
def test_integers_give_what_the_modules_compute(model, tmp_path, changes, config):
    found, session = text_error(model, recipe_of(replace(STATIC, **changes)), tmp_path, config)
    assert session.kinds["QGemm"] == LINEARS["text_kv"]
    # Of what is out of a drawn range, Q makes -128, and the modules -127.
    assert found < 5e-3


def test_without_vnni_no_two_weights_share_a_zero_point(model, tmp_path):
    """ONNX Runtime rewrites each weight together with its zero point."""
    session = Session(model, recipe_of(), "denoise", tmp_path, WITHOUT_VNNI)
    assert session.kinds["QGemm"] == LINEARS["denoise"]
    graph = ir.load(session.exported.onnx).graph
    zeros = [
        node.inputs[2].name
        for node in graph
        if node.op_type == "DequantizeLinear" and node.inputs[0].dtype == ir.DataType.INT8
    ]
    assert len(zeros) == len(set(zeros)) == LINEARS["denoise"]


def test_weights_alone_leave_the_input(model, tmp_path):
    found, session = text_error(model, recipe_of(LinearFormat("int8")), tmp_path)
    assert (session.kinds["QGemm"], session.kinds["QuantizeLinear"]) == (0, 0)
    assert found < 1e-5


@pytest.mark.parametrize(("name", "center"), [("denoise", True), ("kv_update", False)])
def test_rings_are_int8_states_that_are_written_in_place(model, tmp_path, name, center):
    rings = AttentionFormat(keys="int8", values="int8", center=center)
    session = Session(model, recipe_of(None, rings), name, tmp_path)
    stored = {spec.name for spec in session.signature.states if spec.rounding is not None}
    graph = ir.load(session.exported.onnx)
    assert stored <= aliasable_states(graph, session.signature)
    filled = transformer.filled(session.signature)
    eager = {n: torch.zeros_like(t) if n in stored else t for n, t in filled.items()}
    states = {n: value.clone() for n, value in eager.items()}
    arguments = [spec.name for spec in session.signature.arguments]
    written = [spec.name for spec in session.signature.states if spec.writes]
    for block in transformer.blocks(session.signature, 0, BLOCKS):
        given = block | eager
        with torch.no_grad():
            outputs = session.component.module(*(given[name] for name in arguments))
        values = session.run(block | states)
        for spec, expected in zip(session.signature.outputs, outputs, strict=True):
            assert error(values[spec.name], expected) < 0.02
        states |= {name: values[state_output(name)] for name in written}
    for name in stored:
        found, expected = (
            session.signature[name].dequantize(each[name], session.weights.__getitem__)
            for each in (states, eager)
        )
        assert states[name].dtype == torch.int8
        assert np.abs(states[name].numpy()).any()
        # Of what is out of a drawn range, Q makes -128, and the modules -127.
        assert error(found, expected) < 0.02


def test_linear_layers_and_rings_go_together(model, tmp_path):
    rings = AttentionFormat(keys="int8", values="int8")
    session = Session(model, recipe_of(STATIC, rings), "kv_update", tmp_path)
    matmuls, inputs = LINEARS["kv_update"], INPUTS["kv_update"]
    assert session.kinds["QGemm"] == matmuls
    written = Counter(node.op_type for node in ir.load(session.exported.onnx).graph)
    assert written["QuantizeLinear"] == inputs + 2 * LAYERS
    # The last layer writes keys and values, which nothing reads.
    assert written["DequantizeLinear"] == matmuls + inputs + 2 * (LAYERS - 1)
