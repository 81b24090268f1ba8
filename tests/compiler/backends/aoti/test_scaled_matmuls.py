"""Programs in 8 bits as a GPU takes them: they compute what rounding weights and inputs means."""

import copy
import shutil

import pytest
import torch
import transformer
from quantized import Quantized, fp8_linears
from safetensors.torch import save_file

from vidc.compiler.backends.aoti import scaled_matmuls
from vidc.compiler.backends.aoti.cuda import lower
from vidc.compiler.backends.aoti.inductor import compile_package
from vidc.compiler.backends.aoti.packages import finish_package
from vidc.compiler.backends.aoti.scaled_matmuls import lower_linears, quantized_matmuls_of
from vidc.compiler.config.recipe import load_recipe
from vidc.exporters.program import export_program
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.quantized_linear import dequantized_linear, quantized_linear
from vidc.runtime import manifest
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
SMALL = ("model.dim=64", "model.heads=2", "model.ffn_dim=128", "stream.height=32")
LAYERS = 2
SCALED = torch.ops.aten._scaled_mm.default
TEXT_KV = 2 * LAYERS


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


@pytest.fixture(scope="module")
def fp8(model):
    return Quantized(model, load_recipe("fp8-linear"))


def run(module, signature, position=216):
    """The outputs and states of some blocks."""
    states, found = transformer.filled(signature), []
    with torch.no_grad():
        for block in transformer.blocks(signature, position):
            given = block | states
            found += module(*(given[spec.name] for spec in signature.arguments))
    return {f"{i}": value for i, value in enumerate(found)} | states


def lowered(quantized, name, fused):
    """A component's program, lowered and filled in as a loader does; and what became of it."""
    program = export_program(quantized.component(name))
    fusion = lower(program, fused=fused)
    weights = quantized.weights
    for whole, parts in fusion.packed.items():
        weights[whole] = torch.cat([weights[part] for part in parts])
    for product, (first, second) in fusion.products.items():
        weights[product] = weights[first] * weights[second]
    for weight in program.state_dict:
        program.state_dict[weight] = torch.nn.Parameter(weights[weight], requires_grad=False)
    return program, fusion


def error(found, expected):
    difference = sum(float((found[n] - expected[n]).square().sum()) for n in expected)
    return (difference / sum(float(value.square().sum()) for value in expected.values())) ** 0.5


def require_imitated(model, quantized, program, name):
    """The error to rounding in float32 is small beside what rounding does."""
    component = model.component(name, "fp32")
    plain = run(component.module, component.signature)
    imitated = run(quantized.imitated(name).module, component.signature)
    found = run(program.module(), component.signature)
    assert 5e-3 < error(imitated, plain) < 0.2
    # Sums in another order round to a neighbor here and there.
    assert error(found, imitated) < 0.1 * error(imitated, plain)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", transformer.COMPONENTS)
def test_a_lowered_program_rounds_weights_and_inputs(model, fp8, name, fused):
    program, _ = lowered(fp8, name, fused)
    require_imitated(model, fp8, program, name)


@pytest.fixture(scope="module")
def dynamic(model):
    return Quantized(model, load_recipe("fp8-dynamic"))


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("name", transformer.COMPONENTS)
def test_lowered_program_has_per_token_scales(model, dynamic, name, fused):
    program, fusion = lowered(dynamic, name, fused)
    calls = program.graph.find_nodes(op="call_function", target=SCALED)
    assert set(quantized_matmuls_of(program).values()) == {True}
    # Inputs are scaled once, whatever reads them; no row has a scale that is a constant.
    scales = {call.args[2] for call in calls}
    assert not any(scale.target is torch.ops.aten.full.default for scale in scales)
    assert len(scales) == len({call.args[0] for call in calls})
    for call in calls:
        rows = call.args[0].meta["val"].shape[0]
        assert call.args[2].meta["val"].shape == (rows, 1)
    assert not any("input_quantizer" in weight for weight in program.state_dict)
    assert fusion.products == {}
    written = program.graph.find_nodes(op="call_function", target=gelu_quantize)
    assert not any(call.args[1] == "float8_e4m3fn" for call in written)
    assert fusion.left == ()
    program.graph.lint()
    require_imitated(model, dynamic, program, name)


def test_weights_alone_are_dequantized(model):
    quantized = Quantized(model, load_recipe("int8-weight-only"))
    program, fusion = lowered(quantized, "denoise", fused=True)
    found = quantized_matmuls_of(program)
    assert set(found.values()) == {False}
    assert len(found) == 6 * LAYERS
    assert "transformer.blocks.0.attn1.to_qkv.weight_scale" in fusion.packed
    component = model.component("denoise", "fp32")
    imitated = run(quantized.imitated("denoise").module, component.signature)
    assert error(run(program.module(), component.signature), imitated) < 1e-5


@pytest.mark.parametrize(
    ("name", "fused", "products", "gelus"),
    [
        ("text_kv", True, TEXT_KV, 0),
        ("denoise", False, 8 * LAYERS, 0),
        ("denoise", True, 6 * LAYERS, LAYERS),
        # The last layer ends in its keys and values, and needs no queries.
        ("kv_update", True, 6 * (LAYERS - 1) + 2, LAYERS - 1),
    ],
)
def test_every_matmul_of_recipe_occurs_once(fp8, name, fused, products, gelus):
    program, fusion = lowered(fp8, name, fused)
    calls = program.graph.find_nodes(op="call_function", target=SCALED)
    assert len(calls) == products
    assert set(quantized_matmuls_of(program).values()) == {True}
    assert not program.graph.find_nodes(op="call_function", target=quantized_linear)
    written = program.graph.find_nodes(op="call_function", target=gelu_quantize)
    assert sum(call.args[1] == "float8_e4m3fn" for call in written) == gelus
    assert fusion.left == ()
    program.graph.lint()
    # What rows are scaled by is made once for all products of as many rows.
    rows = {call.args[0].meta["val"].shape[0] for call in calls}
    assert len({call.args[2] for call in calls}) == len(rows)


def test_keys_and_values_share_a_quantized_input(fp8):
    program, _ = lowered(fp8, "text_kv", fused=True)
    calls = program.graph.find_nodes(op="call_function", target=SCALED)
    assert len({call.args[0].args[0] for call in calls}) == TEXT_KV // 2


def test_packed_weights_have_their_scales_beside_them(fp8):
    _, fusion = lowered(fp8, "denoise", fused=True)
    layers = [f"transformer.blocks.{layer}.attn1" for layer in range(LAYERS)]
    assert fusion.packed == {
        f"{layer}.to_qkv.{kind}": tuple(f"{layer}.to_{part}.{kind}" for part in "qkv")
        for layer in layers
        for kind in ("weight", "weight_scale", "bias")
    }
    for layer in layers:
        factors = f"{layer}.to_qkv.weight_scale", f"{layer}.to_q.input_quantizer.scale"
        assert fusion.products[f"{layer}.to_qkv.product_scale"] == factors


def test_projections_in_different_formats_are_not_packed(model):
    quantized = Quantized(model, fp8_linears("blocks.*.attn1.to_q", "blocks.*.ffn.**"))
    program, fusion = lowered(quantized, "denoise", fused=True)
    assert fusion.packed == {}
    assert fusion.operators == ("gelu_quantize",)
    (left,) = fusion.left
    assert "queries, keys and values in different formats" in left
    assert sum(quantized_matmuls_of(program).values()) == 3 * LAYERS
    require_imitated(model, quantized, program, "denoise")


def test_rejects_matmul_that_is_not_lowered(fp8, monkeypatch):
    program = export_program(fp8.component("text_kv"))

    def dequantized(steps, weight, scale, bias, ones, dtype):
        return dequantized_linear(steps.to(dtype), weight, scale, bias)

    monkeypatch.setattr(scaled_matmuls, "scaled_matmul", dequantized)
    with pytest.raises(
        BuildError, match=r"VIDC-QUANTIZE-COUNT.*4 quantized matmuls.*found 0.*to_k"
    ):
        lower_linears(program)


def test_a_weight_in_8_bits_that_nothing_reads_is_found(fp8):
    program, _ = lowered(fp8, "text_kv", fused=True)
    call = program.graph.find_nodes(op="call_function", target=SCALED)[0]
    other = program.graph.find_nodes(op="call_function", target=SCALED)[1]
    call.args = (call.args[0], other.args[1], *call.args[2:])
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-COUNT.*read by 0 operations"):
        quantized_matmuls_of(program)


def test_an_engine_computes_what_its_program_does(model, fp8, tmp_path):
    """As AOTInductor makes and loads it, from weights as a bundle has them."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    signature = model.component("denoise", "fp32").signature
    program, fusion = lowered(fp8, "denoise", fused=True)
    expected = run(copy.deepcopy(program).module(), signature)
    for weight, value in program.state_dict.items():  # A build compiles before it has any.
        program.state_dict[weight] = torch.nn.Parameter(torch.zeros_like(value), False)
    compile_package(program, tmp_path / "denoise.pt2")
    in_place = signature.with_in_place(frozenset(s.name for s in signature.states if s.writes))
    options = {
        "packed": {name: list(parts) for name, parts in fusion.packed.items()},
        "products": {name: list(factors) for name, factors in fusion.products.items()},
    }
    finish_package(tmp_path / "denoise.pt2", program, in_place, options)
    stored = {name.removeprefix("transformer."): value for name, value in fp8.weights.items()}
    save_file(stored, tmp_path / "transformer.safetensors")
    entry = manifest.Engine(
        "aoti", "aoti", torch.__version__, "fp8", ("denoise.pt2",), in_place, options,
        manifest.Requirements(torch.__version__, (), fusion.operators),
    )  # fmt: skip
    weights = Weights({"transformer": tmp_path / "transformer.safetensors"}, CPU)
    engine = load(Files(tmp_path), entry, weights, CPU)
    states, buffers = States([engine.signature], CPU), Buffers(engine.signature, CPU)
    for name, value in transformer.filled(engine.signature).items():
        states[name].copy_(value)
    found = {}
    for block, given in enumerate(transformer.blocks(engine.signature, 216)):
        buffers.set(given)
        engine.run(buffers, states)
        found[f"{block}"] = buffers["flow"].clone()
    found |= {spec.name: states[spec.name] for spec in engine.signature.states}
    plain = run(model.component("denoise", "fp32").module, signature)
    assert error(found, expected) < 0.1 * error(expected, plain)
