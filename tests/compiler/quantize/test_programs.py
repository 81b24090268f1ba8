"""Programs whose Linears are calls of ``vidc::quantized_linear``, and what is refused."""

import re
from dataclasses import replace

import pytest
import quantized
import torch
import transformer
from torch import nn
from torch.nn import functional as F

from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize import programs
from vidc.compiler.quantize.attention import quantized_attention
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.compiler.quantize.programs import found_linears, quantize, quantize_program
from vidc.compiler.quantize.support import AOTI_GPU
from vidc.compiler.quantize.tensors import TensorType
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.program import export_program, load_program, save_program, weight_names
from vidc.exporters.tracing import tracing
from vidc.plugins.errors import BuildError, UsageError
from vidc.plugins.ops.quantized_linear import quantized_linear

FP8, LAYERS = torch.float8_e4m3fn, 2
LINEARS = {"text_kv": 2 * LAYERS, "denoise": 8 * LAYERS, "kv_update": 8 * LAYERS - 6}


@pytest.fixture(scope="module")
def model():
    return transformer.model("model.dim=64", "model.heads=2", "stream.height=32")


@pytest.fixture
def written(model, tmp_path):
    """Writes the quantized program of a component."""

    def write(name, recipe="fp8-linear"):
        exported, made = tmp_path / f"{name}.pt2", tmp_path / f"{name}.quantized.pt2"
        save_program(export_program(model.component(name, "bf16")), exported)
        weights = {key: value.bfloat16() for key, value in model.weights.items()}
        linears = quantized_linears(load_recipe(recipe), model.config, AOTI_GPU)
        attentions = quantized_attention(load_recipe(recipe), model.config, AOTI_GPU)
        signature = model.component(name, "bf16").signature
        quantize_program(
            name, exported, "transformer", weights, linears, made, attentions, signature
        )
        return load_program(made)

    return write


@pytest.mark.parametrize("recipe", ["fp8-linear", "fp8-dynamic", "int8-weight-only"])
@pytest.mark.parametrize("name", LINEARS)
def test_every_linear_of_the_recipe_is_a_call(written, name, recipe):
    program = written(name, recipe)
    found = found_linears(program)
    assert len(found) == LINEARS[name]
    calls = program.graph.find_nodes(op="call_function", target=quantized_linear)
    assert {call.args[1].meta["val"].dtype for call in calls} == {
        torch.int8 if recipe == "int8-weight-only" else FP8
    }
    assert all(each.computes == (recipe != "int8-weight-only") for each in found)
    assert all(each.dynamic == (recipe == "fp8-dynamic") for each in found)
    assert all((each.input_scale is not None) == (recipe == "fp8-linear") for each in found)
    assert set(weight_names(program).values()) == set(program.state_dict)
    placeholders = [node.name for node in program.graph.find_nodes(op="placeholder")]
    assert placeholders == [spec.arg.name for spec in program.graph_signature.input_specs]


def test_a_linear_that_is_left_out_is_found(written, monkeypatch):
    whole = programs.quantize
    monkeypatch.setattr(
        programs,
        "quantize",
        lambda name, program, some, types: whole(name, program, some[1:], types),
    )
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-COUNT.*text_kv.*attn2\.to_k"):
        written("text_kv")


def test_a_token_s_scale_that_is_left_out_is_found(written, monkeypatch):
    whole = programs.quantize

    def without(name, program, linears, types):
        whole(name, program, [replace(each, dynamic=False) for each in linears], types)

    monkeypatch.setattr(programs, "quantize", without)
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-COUNT.*4 inputs.*0 inputs.*attn2\.to_k"):
        written("text_kv", "fp8-dynamic")


@pytest.mark.parametrize("name", LINEARS)
def test_a_mean_that_is_not_taken_off_is_found(written, monkeypatch, name):
    found = found_linears(written(name))
    assert all(linear.input_mean is not None for linear in found)
    whole = programs.quantize

    def without(name, program, linears, types):
        whole(name, program, [replace(each, input_mean=None) for each in linears], types)

    monkeypatch.setattr(programs, "quantize", without)
    layer = re.escape(found[0].weight)
    with pytest.raises(BuildError, match=rf"VIDC-QUANTIZE-COUNT.*{name}.*{layer}"):
        written(name)


class _Two(nn.Module):
    def __init__(self, width=16, outside=False, bias=True):
        super().__init__()
        self.net = nn.Module()
        self.net.a, self.net.b = (nn.Linear(width, width, bias=bias) for _ in "ab")
        self.outside = outside

    def forward(self, x, y):
        weights = getattr(self.net.a, self.outside).sum() if self.outside else 0
        return self.net.a(x), self.net.b(y) + weights


TENSORS = {n: LinearTensors(f"net.{n}.weight", f"net.{n}.scale", "net.input") for n in "ab"}


def quantize_two(module, *linears):
    width = module.net.a.in_features
    with tracing():
        given = (torch.empty(1, 3, width), torch.empty(1, 3, width))
        program = torch.export.export(module, given, strict=False).run_decompositions({})
    types = {
        "net.input": TensorType((1,), torch.float32),
        "net.mean": TensorType((width,), torch.float32),
    }
    for linear in linears:
        types[linear.weight] = TensorType((width, width), FP8)
        types[linear.weight_scale] = TensorType((width,), torch.float32)
    quantize("two", program, linears, types)
    return program


def test_linears_of_two_inputs_share_no_scale():
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-GRAPH.*net\.b\.weight.*shares net\.input"):
        quantize_two(_Two(), *TENSORS.values())
    apart = replace(TENSORS["b"], input_scale=None)
    assert found_linears(quantize_two(_Two(), TENSORS["a"], apart)) == [TENSORS["a"], apart]


def test_a_weight_that_is_read_twice_is_refused():
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-GRAPH.*net\.a\.weight.*sum"):
        quantize_two(_Two(outside="weight"), TENSORS["a"])


@pytest.mark.parametrize("options", [{"bias": False}, {"outside": "bias"}], ids=str)
def test_a_bias_that_cannot_make_up_for_a_mean_is_refused(options):
    centered = replace(TENSORS["a"], input_mean="net.mean")
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-GRAPH.*two: net\.a\.weight.*no bias of"):
        quantize_two(_Two(**options), centered)
    assert found_linears(quantize_two(_Two(**options), TENSORS["a"])) == [TENSORS["a"]]
    assert found_linears(quantize_two(_Two(), centered)) == [centered]


def test_sizes_that_no_product_takes_are_refused():
    with pytest.raises(BuildError, match=r"VIDC-QUANTIZE-GRAPH.*no multiples of 16"):
        quantize_two(_Two(width=24), TENSORS["a"])
    quantize_two(_Two(width=24), replace(TENSORS["a"], input_scale=None))


def test_operator_multiplies_quantized_values():
    drawn = torch.Generator().manual_seed(0)
    x, bias = torch.randn(2, 5, 16, generator=drawn), torch.randn(32, generator=drawn)
    weight = torch.randn(32, 16, generator=drawn)
    ends = {"input": x.abs().max() / 2, "weight": weight.abs().amax(1, keepdim=True)}
    rounded = quantized._rounded(weight, ends["weight"], "fp8")
    input_scale, weight_scale = ends["input"][None] / 448, ends["weight"][:, 0] / 448
    steps = (weight / weight_scale[:, None]).to(FP8)
    expected = F.linear(quantized._rounded(x, ends["input"], "fp8"), rounded, bias)
    scale = weight_scale * input_scale
    found = quantized_linear(x, steps, scale, bias, input_scale, None, None)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    factor = torch.rand(16, generator=drawn) + 0.5
    smoothed = quantized_linear(x / factor, steps, scale, bias, input_scale, factor, None)
    torch.testing.assert_close(smoothed, expected, rtol=0.05, atol=0.2)
    mean = torch.randn(16, generator=drawn)
    centered = quantized_linear(x + mean, steps, scale, bias, input_scale, None, mean)
    # Where adding the mean rounded, a value may fall to the next step.
    torch.testing.assert_close(centered, expected, rtol=0.05, atol=0.2)
    with pytest.raises(UsageError, match=r"input_mean.*none without input_scale"):
        quantized_linear(x, steps, weight_scale, None, None, None, mean)
    high = quantized_linear(x, steps, weight_scale, None, None, None, None)
    torch.testing.assert_close(high, F.linear(x, rounded), rtol=1e-4, atol=1e-4)
