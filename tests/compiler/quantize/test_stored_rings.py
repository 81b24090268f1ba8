"""Rings that are kept in 8 bits: what they hold and what is attended to is what rounding means."""

import math
import shutil
from dataclasses import replace
from importlib import import_module

import onnx_ir as ir
import onnxruntime
import pytest
import torch
import transformer
from quantized import Quantized
from safetensors.torch import save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from vidc.compiler.backends.aoti.backend import backend
from vidc.compiler.backends.aoti.cuda import lower
from vidc.compiler.config.recipe import load_recipe, parse_recipe
from vidc.compiler.config.targets import targets
from vidc.compiler.quantize import graphs, programs
from vidc.compiler.quantize.programs import found_linears
from vidc.compiler.quantize.rings import found_rings, layer_of
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU, ONNX
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.checkpoint import write_weights
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.export import export_component
from vidc.exporters.onnx.states import aliasable_states
from vidc.exporters.program import export_program, load_program, save_program
from vidc.plugins.errors import BuildError, UnavailableError
from vidc.plugins.ops.fake_quantize import fake_quantize
from vidc.plugins.ops.ring import ring_write
from vidc.plugins.signature import Signature, state_output
from vidc.runtime import manifest
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.strict import read
from vidc.runtime.weights import Weights

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=128", "stream.height=32")
NAMES = {"fp8": "float8_e4m3fn", "int8": "int8"}
BLOCKS = 5
"""More than a window holds, from its first token on: every slot that counts was written."""
SLACK = {"fp32": 2e-3, "bf16": 0.03}
"""Behind the first layer a value that lies between two steps may go to either, as a CPU sums."""
DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


def rings(*formats, **fields):
    """A recipe about rings alone."""
    keys, values = formats if len(formats) == 2 else formats * 2
    rule = {"layers": ["blocks.*.attn1"], "keys": keys, "values": values, **fields}
    return parse_recipe({"description": "some", "attention": [rule]}, "some")


class Written:
    """A component as a form has it, and its weights."""

    def __init__(self, model, recipe, form, name, precision, folder):
        self.quantized = Quantized(model, recipe, form)
        self.component = model.component(name, precision)
        if name in transformer.COMPONENTS:
            exported = ExportedComponent(name, folder, self.component.signature)
            save_program(export_program(self.component), exported.program)
        else:
            exported = export_component(model.config.parts["transformer"], precision, name, folder)
        (folder / "made").mkdir()
        weights = {n: w.to(DTYPES[precision]) for n, w in model.weights.items()}
        self.made = import_module(form.writer).write(
            exported, replace(exported, folder=folder / "made"), "transformer", weights,
            self.quantized.linears, self.quantized.attentions,
        )  # fmt: skip
        self.weights = {
            name: tensor.to(DTYPES[precision]) if name.removeprefix("transformer.") in weights
            else tensor
            for name, tensor in self.quantized.weights.items()
        }  # fmt: skip

    @property
    def program(self):
        program = load_program(self.made.program)
        for name in program.state_dict:
            program.state_dict[name] = nn.Parameter(self.weights[name], requires_grad=False)
        return program

    def states(self):
        filled = transformer.filled(self.component.signature)
        return {
            spec.name: torch.zeros(spec.shape, dtype=spec.torch_dtype)
            if spec.name.startswith("ring.")
            else filled[spec.name]
            for spec in self.made.signature.states
        }

    def expected(self):
        """What the component computes whose keys and values are rounded before they are written."""
        filled = transformer.filled(self.component.signature)
        plain = {n: t.zero_() if n.startswith("ring.") else t for n, t in filled.items()}
        results = []
        with torch.no_grad(), Rounding(self, plain):
            for block in transformer.blocks(self.component.signature, 0, BLOCKS):
                given = block | plain
                arguments = [given[spec.name] for spec in self.component.signature.arguments]
                results += self.component.module(*arguments)
        return results, plain

    def numbers(self, states):
        return {
            spec.name: spec.dequantize(states[spec.name], self.weights.__getitem__)
            for spec in self.made.signature.states
            if spec.rounding is not None
        }


class Rounding(TorchDispatchMode):
    """Rounds what is written to rings, by the reference of rounding."""

    def __init__(self, written, states):
        super().__init__()
        self.written = written
        self.states = {tensor.data_ptr(): name for name, tensor in states.items()}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is ring_write:
            cache, update, *rest = args
            layer, part = layer_of(self.states[cache.data_ptr()])
            attention = self.written.quantized.attentions[layer]
            scale = attention.key_scale if part == "k" else attention.value_scale
            mean = attention.key_mean if part == "k" else None
            weights = self.written.weights
            mean = None if mean is None else weights[f"transformer.{mean}"]
            update = fake_quantize(update, weights[f"transformer.{scale}"], mean, attention.dtype)
            args = (cache, update, *rest)
        return func(*args, **(kwargs or {}))


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


def hold(written, found, states, slack):
    """Compares what was written and returned with what rounding means."""
    expected, plain = written.expected()
    for one, other in zip(found, expected, strict=True):
        assert error(one, other) < slack
    numbers = written.numbers(states)
    assert numbers.keys() == {name for name in plain if name.startswith("ring.")}
    for name, kept in numbers.items():
        assert plain[name].any()
        assert error(kept, plain[name]) < slack, name


def run(module, written, states):
    found = []
    with torch.no_grad():
        for block in transformer.blocks(written.component.signature, 0, BLOCKS):
            given = block | states
            found += module(*(given[spec.name] for spec in written.made.signature.arguments))
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("recipe", ["kv-fp8", "kv-int8"])
@pytest.mark.parametrize("name", transformer.COMPONENTS)
def test_a_program_keeps_its_rings_in_8_bits(model, tmp_path, name, recipe, precision):
    written = Written(model, load_recipe(recipe), AOTI_CPU, name, precision, tmp_path)
    program, signature = written.program, written.made.signature
    assert read(signature.to_json(), Signature, "signature") == signature
    found = found_rings(program, signature)
    assert len(found) == model.config.transformer.layers
    assert all(ring.stored and not ring.attends for ring in found.values())
    narrow, wide = (ring_bytes(each) for each in (signature, written.component.signature))
    assert wide == {"fp32": 4, "bf16": 2}[precision] * narrow
    assert {s.dtype for s in signature.states if s.rounding} == {NAMES[recipe[3:]]}
    states = written.states()
    results = run(program.module(), written, states)
    hold(written, results, states, SLACK[precision])


def ring_bytes(signature):
    return sum(
        math.prod(s.shape) * s.torch_dtype.itemsize
        for s in signature.states
        if s.name.startswith("ring.")
    )


@pytest.mark.parametrize("recipe", ["kv-fp8", "kv-int8"])
@pytest.mark.parametrize("name", ["denoise", "kv_update"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_program_that_is_lowered_for_a_gpu_computes_the_same(
    model, tmp_path, name, recipe, fused
):
    written = Written(model, load_recipe(recipe), AOTI_GPU, name, "fp32", tmp_path)
    program = written.program
    fusion = lower(program, fused, written.made.signature)
    assert not fusion.packed
    assert bool(fusion.left) == fused
    states = written.states()
    results = run(program.module(), written, states)
    hold(written, results, states, SLACK["fp32"])


@pytest.mark.parametrize(
    ("name", "center", "precision"),
    [("denoise", True, "fp32"), ("denoise", False, "fp16"), ("kv_update", True, "fp16")],
)
def test_a_graph_keeps_its_rings_in_int8_and_writes_them_in_place(
    model, tmp_path, name, center, precision
):
    written = Written(model, rings("int8", center=center), ONNX, name, precision, tmp_path)
    made = written.made
    folder = made.onnx.parent / "weights"
    folder.mkdir()
    stored = {n.removeprefix("transformer."): LazyTensor.of(t) for n, t in written.weights.items()}
    write_weights(folder / "transformer.safetensors", stored)
    kept = {spec.name for spec in made.signature.states if spec.rounding is not None}
    assert kept <= aliasable_states(ir.load(made.onnx), made.signature)
    session = onnxruntime.InferenceSession(made.onnx, providers=["CPUExecutionProvider"])
    states, results = written.states(), []
    for block in transformer.blocks(written.component.signature, 0, BLOCKS):
        given = {n: t.numpy() for n, t in (block | states).items()}
        names = [output.name for output in session.get_outputs()]
        out = session.run(names, {i.name: given[i.name] for i in session.get_inputs()})
        values = dict(zip(names, map(torch.from_numpy, out), strict=True))
        results += [values[spec.name] for spec in made.signature.outputs]
        for spec in made.signature.states:
            if spec.writes:
                states[spec.name] = values[state_output(spec.name)]
    assert {states[name].dtype for name in kept} == {torch.int8}
    # What is out of range becomes -128, where rounding stops at -127; of drawn ranges, much is.
    hold(written, results, states, 0.02)


def test_text_kv_has_no_ring(model, tmp_path):
    written = Written(model, load_recipe("kv-int8"), ONNX, "text_kv", "fp32", tmp_path)
    assert written.made.signature == written.component.signature


@pytest.mark.parametrize("form", [ONNX, AOTI_CPU])
def test_a_ring_that_is_left_out_is_found(model, tmp_path, monkeypatch, form):
    module = programs if form is AOTI_CPU else graphs
    whole = module.quantize_rings

    def some(program, signature, group, asked, attentions):
        return whole(program, signature, group, {"blocks.0.attn1": asked["blocks.0.attn1"]},
                     attentions)  # fmt: skip

    monkeypatch.setattr(module, "quantize_rings", some)
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-COUNT.*denoise.*blocks\.1\.attn1"):
        Written(model, load_recipe("kv-int8"), form, "denoise", "fp32", tmp_path)


@pytest.mark.parametrize("form", [ONNX, AOTI_CPU])
def test_swapped_scales_of_keys_and_values_are_found(model, tmp_path, monkeypatch, form):
    module = programs if form is AOTI_CPU else graphs
    whole = module.quantize_rings

    def swapped(program, signature, group, asked, attentions):
        asked = {
            layer: replace(ring, key_scale=ring.value_scale, value_scale=ring.key_scale)
            for layer, ring in asked.items()
        }
        return whole(program, signature, group, asked, attentions)

    monkeypatch.setattr(module, "quantize_rings", swapped)
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-COUNT.*denoise.*blocks\.0\.attn1"):
        Written(model, load_recipe("kv-int8"), form, "denoise", "fp32", tmp_path)


def test_a_ring_that_is_read_by_another_scale_is_found(model, tmp_path):
    written = Written(model, load_recipe("kv-fp8"), AOTI_CPU, "denoise", "fp32", tmp_path)
    program = written.program
    attention = program.graph.find_nodes(
        op="call_function", target=torch.ops.vidc.ring_attention.default
    )[0]
    key, value = attention.args[1:3]
    value.args = (value.args[0], key.args[1], value.args[2])
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-COUNT.*blocks\.0\.attn1"):
        found_rings(program, written.made.signature)


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        (rings("fp8", "int8"), "keys of blocks.0.attn1 in fp8 and values in int8"),
        (rings("int8", "high"), "keys of blocks.0.attn1 in int8 and values in high"),
        (rings("int8", scale="dynamic"), "a ring of blocks.0.attn1 with per-token scales"),
    ],
)
@pytest.mark.parametrize("form", [ONNX, AOTI_GPU, AOTI_CPU])
def test_rejects_unsupported_rings(model, recipe, what, form):
    with pytest.raises(UnavailableError, match=f"VIDC-RECIPE-LOWERING.*{what}"):
        Quantized(model, recipe, form)


@pytest.mark.parametrize(
    ("linears", "kind", "form"), [("int8-static", "int8", ONNX), ("fp8-linear", "fp8", AOTI_GPU)]
)
def test_one_recipe_may_have_linears_and_rings(model, tmp_path, linears, kind, form):
    both = replace(load_recipe(linears), attention=load_recipe(f"kv-{kind}").attention)
    written = Written(model, both, form, "kv_update", "fp32", tmp_path)
    layers = model.config.transformer.layers
    states = [spec for spec in written.made.signature.states if spec.rounding is not None]
    assert len(states) == 2 * layers
    if form is AOTI_GPU:
        program = written.program
        assert len(found_linears(program)) == 8 * layers - 6
        lower(program, True, written.made.signature)
        return
    graph = ir.load(written.made.onnx).graph
    kinds = [node.op_type for node in graph]
    # Of the last layer, keys and values are written and not read.
    assert kinds.count("DequantizeLinear") - kinds.count("QuantizeLinear") == (8 * layers - 6 - 2)


def test_an_engine_of_aoti_keeps_its_ring_in_int8(model, tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    written = Written(model, load_recipe("kv-int8"), AOTI_CPU, "kv_update", "bf16", tmp_path)
    output = tmp_path / "engine"
    output.mkdir()
    compiled = backend.compile(written.made, targets()["cpu"], {}, output)
    assert all(s.in_place for s in compiled.signature.states if s.rounding is not None)
    stored = {n.removeprefix("transformer."): t for n, t in written.weights.items()}
    save_file(stored, tmp_path / "transformer.safetensors")
    entry = manifest.Engine(
        "aoti", compiled.loader, compiled.version, "int8", compiled.files, compiled.signature,
        dict(compiled.options), compiled.requires,
    )  # fmt: skip
    cpu = torch.device("cpu")
    weights = Weights({"transformer": tmp_path / "transformer.safetensors"}, cpu)
    engine = load(Files(output), entry, weights, cpu)
    states, buffers = States([engine.signature], cpu), Buffers(engine.signature, cpu)
    for name, value in written.states().items():
        states[name].copy_(value)
    for block in transformer.blocks(written.component.signature, 0, BLOCKS):
        buffers.set(block)
        engine.run(buffers, states)
    scale = "transformer.blocks.0.attn1.key_scale"
    assert torch.equal(engine.weight(scale), written.weights[scale])
    kept = {spec.name: states[spec.name] for spec in engine.signature.states}
    hold(written, [], kept, 0.03)
