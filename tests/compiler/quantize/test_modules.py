"""Networks of quantized modules: what they compute and store, and what they call."""

import math
from dataclasses import replace

import pytest
import torch
import transformer
from quantized import ENDS, Quantized, calibration, fp8_linears

from vidc.compiler.config.recipe import (
    AttentionFormat,
    LinearFormat,
    Recipe,
    Rule,
    load_recipe,
    parse_recipe,
)
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.modules import quantized_components, quantized_modules
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU, ONNX
from vidc.compiler.quantize.weights import quantized_state
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.program import export_program, quantized_weights
from vidc.plugins.errors import UnavailableError
from vidc.plugins.ops.quantized_linear import quantized_linear
from vidc.plugins.signature import Signature
from vidc.runtime.strict import read

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=128", "stream.height=32")
LAYERS = 2
LINEARS = {"text_kv": 2 * LAYERS, "denoise": 8 * LAYERS, "kv_update": 8 * LAYERS - 6}
NAMES = {"fp8": "float8_e4m3fn", "int8": "int8"}
BLOCKS = 5
"""More than a window holds, from its first token on: every slot that counts was written."""


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


def rings(*formats, **fields):
    """A recipe about rings alone."""
    keys, values = formats if len(formats) == 2 else formats * 2
    rule = {"layers": ["blocks.*.attn1"], "keys": keys, "values": values, **fields}
    return parse_recipe({"description": "some", "attention": [rule]}, "some")


def run(component, position=216, blocks=3):
    """The outputs and states of some blocks."""
    states, found = transformer.filled(component.signature), []
    states |= {n: torch.zeros_like(t) for n, t in states.items() if n.startswith("ring.")}
    with torch.no_grad():
        for block in transformer.blocks(component.signature, position, blocks):
            given = block | states
            found += component.module(*(given[spec.name] for spec in component.signature.arguments))
    return found, states


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize(
    "recipe", ["fp8-linear", "fp8-dynamic", "int8-static", "int8", "int8-weight-only"]
)
def test_every_linear_layer_computes_what_rounding_by_hand_gives(model, recipe):
    loaded = load_recipe(recipe)
    plain = tuple(Rule(r.layers, replace(r.format, smooth=0.0)) for r in loaded.linear)
    quantized = Quantized(model, replace(loaded, linear=plain), AOTI_CPU)
    found, imitated, exact = (
        component.module.transformer
        for component in (
            quantized.component("denoise"),
            quantized.imitated("denoise"),
            model.component("denoise", "fp32"),
        )
    )
    drawn = torch.Generator().manual_seed(1)
    assert quantized.linears
    for name in quantized.linears:
        high = exact.get_submodule(name)
        x = torch.randn(1, 40, high.in_features, generator=drawn)
        expected = imitated.get_submodule(name)(x)
        # Of drawn ranges, some are narrower than the inputs.
        assert 3e-3 < error(expected, high(x)) < 0.7
        # A value between two numbers may become either.
        assert error(found.get_submodule(name)(x), expected) < 1e-3


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("kind", NAMES)
@pytest.mark.parametrize("name", transformer.COMPONENTS)
def test_rings_store_rounded_keys_and_values(model, name, kind, center):
    quantized = Quantized(model, rings(kind, center=center), AOTI_CPU)
    component, plain = quantized.component(name), model.component(name, "fp32")
    signature = component.signature
    assert read(signature.to_json(), Signature, "signature") == signature
    _, states = run(component, 0, BLOCKS)
    _, exact = run(plain, 0, BLOCKS)
    weights = quantized.weights
    stored = [spec for spec in signature.states if spec.rounding is not None]
    assert {spec.name for spec in stored} == {n for n in exact if n.startswith("ring.")}
    assert {spec.dtype for spec in stored} == {NAMES[kind]}
    for spec in stored:
        if not spec.name.endswith(".0"):
            continue  # Behind the first layer's attention, keys and values differ.
        scale = weights[spec.rounding.scale].double()[:, None]
        mean = 0.0 if spec.rounding.mean is None else weights[spec.rounding.mean].double()
        assert (spec.rounding.mean is not None) == (center and spec.name == "ring.k.0")
        steps = ((exact[spec.name].double() - mean) / scale).clamp(-ENDS[kind], ENDS[kind])
        rounded = steps.round() if kind == "int8" else steps.float().to(torch.float8_e4m3fn)
        expected = rounded.double() * scale + mean
        written = states[spec.name].float().flatten(2).any(2)
        assert written.any()
        values = spec.dequantize(states[spec.name], weights.__getitem__)
        assert error(values[written], expected[written]) < 2e-3


def test_rings_take_a_quarter_of_the_bytes(model):
    def ring_bytes(signature):
        return sum(
            math.prod(spec.shape) * spec.torch_dtype.itemsize
            for spec in signature.states
            if spec.name.startswith("ring.")
        )

    quantized = Quantized(model, load_recipe("kv-int8"), AOTI_CPU).component("denoise").signature
    plain = model.component("denoise", "fp32").signature
    assert ring_bytes(plain) == 4 * ring_bytes(quantized)


def test_component_without_rings_keeps_its_signature(model):
    made = Quantized(model, load_recipe("kv-int8"), ONNX).component("text_kv")
    assert made.signature == model.component("text_kv", "fp32").signature


@pytest.mark.parametrize("name", LINEARS)
@pytest.mark.parametrize(
    ("recipe", "computes"),
    [("fp8-linear", True), ("fp8-dynamic", True), ("int8-weight-only", False)],
)
def test_program_calls_each_quantized_layer_of_the_recipe_once(model, name, recipe, computes):
    program = export_program(Quantized(model, load_recipe(recipe)).component(name))
    found = quantized_weights(program)
    calls = program.graph.find_nodes(op="call_function", target=quantized_linear)
    assert len(calls) == len(found)
    assert set(found.values()) == {computes}
    if recipe == "fp8-linear":
        assert len(found) == LINEARS[name]


def test_export_depends_on_formats_and_not_on_ranges(model, tmp_path):
    quantized, programs = Quantized(model, load_recipe("int8-static"), ONNX), []
    for reach in (1.0, 2.0):
        quantized.calibration = calibration(model.config, reach=reach)
        folder = tmp_path / str(reach)
        folder.mkdir()
        made = quantized.exported("text_kv", "fp32", folder, onnx=True)
        programs.append((made.program.read_bytes(), made.onnx.read_bytes()))
    assert programs[0] == programs[1]


@pytest.mark.parametrize(
    ("recipe", "what"),
    [
        (rings("fp8", "int8"), "keys of blocks.0.attn1 in fp8 and values in int8"),
        (rings("int8", "high"), "keys of blocks.0.attn1 in int8 and values in high"),
        (rings("int8", scale="dynamic"), "a ring of blocks.0.attn1 with per-token scales"),
    ],
)
@pytest.mark.parametrize("support", [ONNX, AOTI_GPU, AOTI_CPU])
def test_rejects_unsupported_rings(model, recipe, what, support):
    with pytest.raises(UnavailableError, match=f"VIDC-RECIPE-LOWERING.*{what}"):
        supported_formats(recipe, model.config, support)


def test_layers_of_one_input_share_its_quantizer(model):
    part = model.config.quantized_part
    formats = apply_recipe(load_recipe("fp8-linear"), model.config)
    made = quantized_modules(part, part.network("fp32"), formats)
    query, key, value = (made[n][n] for n in (f"blocks.0.attn1.to_{each}" for each in "qkv"))
    assert query.input_quantizer is key.input_quantizer is value.input_quantizer
    assert [n for n in key.state_dict() if "quantizer" in n] == []
    apart = apply_recipe(fp8_linears("blocks.*.attn1.to_k", "blocks.*.attn1.to_v"), model.config)
    made = quantized_modules(part, part.network("fp32"), apart)
    assert (
        "input_quantizer.scale" in made["blocks.0.attn1.to_k"]["blocks.0.attn1.to_k"].state_dict()
    )


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("kind", NAMES)
def test_per_token_rings_round_each_token_and_head(model, kind, center):
    """No engine stores them; analysis plays them."""
    attention = AttentionFormat(kind, kind, kind, "dynamic", center)
    recipe = Recipe("mine", "d", (), (Rule(("blocks.*.attn1",), attention),))
    part, formats = model.config.quantized_part, apply_recipe(recipe, model.config)
    network = part.network("fp32")
    quantized_components(part, formats, network)
    ranges = calibration(model.config)
    state = quantized_state(network.state_dict(), lazy(model), formats, ranges)
    network.load_state_dict({n: t.load() for n, t in state.items()}, assign=True)
    x = torch.randn(1, 4, 2, 64, generator=torch.Generator().manual_seed(5)) * 3
    for child in ("queries", "keys", "values"):
        mean = ranges.tensors["blocks.1.attn1.k.mean"] if center and child == "keys" else 0.0
        values = x.double() - mean
        step = values.abs().amax(-1, keepdim=True) / ENDS[kind]
        steps = values / step
        rounded = steps.round() if kind == "int8" else steps.float().to(torch.float8_e4m3fn)
        found = network.get_submodule(f"blocks.1.attn1.ring.{child}")(x)
        assert error(found, rounded.double() * step) < 2e-3


def test_layer_in_high_precision_stays_as_it_is(model):
    formats = apply_recipe(
        Recipe("mine", "d", (Rule(("blocks.0.ffn.net.2",), LinearFormat("int8")),), ()),
        model.config,
    )
    part = model.config.quantized_part
    assert [*quantized_modules(part, part.network("fp32"), formats)] == ["blocks.0.ffn.net.2"]


def lazy(model):
    return {name: LazyTensor.of(tensor) for name, tensor in model.weights.items()}
