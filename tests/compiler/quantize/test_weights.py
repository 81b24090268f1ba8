"""Quantized weights, what is stored of them, and faults that must not get past the check."""

import math
import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from vidc.compiler.config.recipe import LinearFormat, load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.apply import Quantization
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.check import require_faithful
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.linears import by_owner, linears_of
from vidc.compiler.quantize.modules import quantized_components, quantized_modules
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU, ONNX, TENSORRT
from vidc.compiler.quantize.weights import quantized_state
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.plugins.errors import BuildError, UnavailableError

SCALES = ("weight_scale", "input_quantizer.scale")


@pytest.fixture
def stored(model):
    return model.state()


def check(found, model):
    require_faithful(found, model.weights, model.linears, model.calibration)


def changed(found, name, change):
    return {**found, name: LazyTensor.of(change(found[name].load()))}


def fault(layer, what):
    """Message of the check of a layer."""
    return rf"VIDC-QUANTIZE-WEIGHTS.*transformer, {re.escape(layer)}: .*{what}"


def test_types_match_loaded_tensors(model, stored):
    types = model.types()
    assert stored.keys() == types.keys()
    for name, tensor in stored.items():
        values = tensor.load()
        assert (values.shape, values.dtype) == (types[name].shape, types[name].dtype)
        assert (tensor.shape, tensor.dtype) == (values.shape, values.dtype)


def test_quantized_weights_pass_check(model, stored):
    check(stored, model)


def test_quantized_linear_has_a_quarter_of_the_bytes(model, stored):
    for name in model.linears:
        before = model.weights[f"{name}.weight"].load()
        after = stored[f"{name}.weight"].load()
        assert after.nbytes * 4 == before.nbytes


@pytest.mark.parametrize("times", [0.5, 0.9, 1.1, 2.0])
def test_a_wrong_scale_is_found_and_named(model, stored, times):
    layer = "blocks.1.ffn.net.2"
    for kind in SCALES:
        if (name := f"{layer}.{kind}") in stored:
            with pytest.raises(BuildError, match=rf"VIDC-QUANTIZE-WEIGHTS.*transformer, {layer}:"):
                check(changed(stored, name, lambda t: t * times), model)


def test_swapped_scales_are_found_and_named(model, stored):
    one, other = "blocks.0.attn1.to_out.0", "blocks.1.attn1.to_out.0"
    for kind in SCALES:
        names = f"{one}.{kind}", f"{other}.{kind}"
        if names[0] in stored:
            swapped = stored | {names[0]: stored[names[1]], names[1]: stored[names[0]]}
            with pytest.raises(BuildError, match=rf"transformer, {one}:"):
                check(swapped, model)


def test_a_weight_of_another_layer_is_found(model, stored):
    swapped = stored | {"blocks.0.ffn.net.2.weight": stored["blocks.1.ffn.net.2.weight"]}
    with pytest.raises(BuildError, match=r"blocks\.0\.ffn\.net\.2: output channel"):
        check(swapped, model)


def test_factors_that_are_not_divided_out_are_found(model, stored):
    name = "blocks.0.ffn.net.2.input_quantizer.pre_quant_scale"
    if name not in stored:
        pytest.skip("the recipe smooths nothing")
    with pytest.raises(BuildError, match=r"blocks\.0\.ffn\.net\.2:"):
        check(changed(stored, name, torch.ones_like), model)


@pytest.mark.parametrize(
    "name", ["blocks.1.attn2.to_q.input_quantizer.mean", "blocks.1.attn2.to_q.bias"]
)
def test_a_mean_that_the_bias_does_not_make_up_for_is_found(model, stored, name):
    if "blocks.1.attn2.to_q.input_quantizer.mean" not in stored:
        pytest.skip("the recipe centres nothing")
    for change in (
        lambda t: t + 0.01,
        lambda t: t * 1.001,
        torch.zeros_like,
        lambda t: t * math.nan,
        lambda t: t + math.inf,
    ):
        with pytest.raises(BuildError, match=fault("blocks.1.attn2.to_q", "does not make up for")):
            check(changed(stored, name, change), model)


def test_a_mean_that_is_not_the_calibration_s_is_found(model):
    """Another mean that scale and bias make up for computes the same product, in coarser steps."""
    site = "blocks.0.ffn.net.0.proj"
    if not model.linears[site].format.center:
        pytest.skip("the recipe centres nothing")
    tensors = dict(model.calibration.tensors)
    tensors[f"{site}.input.mean"] = torch.zeros_like(tensors[f"{site}.input.mean"])
    plain = Calibration(model.calibration.document, tensors)
    made = replace(model, calibration=plain).state()
    require_faithful(made, model.weights, model.linears, plain)
    with pytest.raises(BuildError, match=fault(site, r"0 is subtracted from channel 0")):
        check(made, model)


def test_swapped_means_are_found_and_named(model, stored):
    one, other = (f"blocks.{layer}.attn1.to_q.input_quantizer.mean" for layer in (0, 1))
    if one not in stored:
        pytest.skip("the recipe centres nothing")
    swapped = stored | {one: stored[other], other: stored[one]}
    with pytest.raises(BuildError, match=fault("blocks.0.attn1.to_q", "does not make up for")):
        check(swapped, model)


def test_a_bias_is_the_sum_of_what_it_was_and_what_is_taken_off(model, stored):
    """In other arithmetic; of what is not centered, it stays."""
    for name, linear in model.linears.items():
        before, after = (each[f"{name}.bias"].load() for each in (model.weights, stored))
        expected = before.double()
        if linear.format.center:
            weight, mean = model.weights[f"{name}.weight"], stored[linear.mean]
            expected = expected + (weight.load().double() * mean.load().double()).sum(1)
        torch.testing.assert_close(after.double(), expected, rtol=1e-6, atol=1e-7)
        assert linear.format.center or torch.equal(before, after)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_large_means_of_16bit_weights_pass_check(model, dtype):
    weights = {n: LazyTensor.of(t.load().to(dtype)) for n, t in model.weights.items()}
    tensors = dict(model.calibration.tensors)
    for name in [name for name in tensors if name.endswith(".input")]:
        offset = 100 + tensors[f"{name}.high"]
        for of in ("low", "mean", "high"):
            tensors[f"{name}.{of}"] = tensors[f"{name}.{of}"] + offset
        tensors[name] = tensors[name] + offset
    far = Calibration(model.calibration.document, tensors)
    types = model.types({torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype])
    made = quantized_state(types, weights, model.formats, far)
    require_faithful(made, weights, model.linears, far)


def test_a_linear_without_a_bias_is_not_centered(model):
    layer = "blocks.1.attn1.to_k"
    part = model.config.quantized_part
    network = part.network("fp32")
    network.get_submodule(layer).bias = None
    if not model.linears[layer].format.center:
        made = quantized_modules(part, network, model.formats)
        assert made[layer][layer].bias is None
        return
    with pytest.raises(BuildError, match=rf"VIDC-QUANTIZE-GRAPH.*{re.escape(layer)} has no bias"):
        quantized_modules(part, network, model.formats)


numbers = st.integers(-64, 64).map(lambda n: n / 8)
"""Sums of some products of two of these are exact in float32."""


@given(st.data(), st.integers(1, 8), st.integers(1, 8))
def test_centering_changes_nothing_in_exact_arithmetic(
    calibration, data, features_in, features_out
):
    def drawn(*shape):
        size = math.prod(shape)
        values = data.draw(st.lists(numbers, min_size=size, max_size=size))
        return torch.tensor(values).reshape(shape)

    weight, bias = drawn(features_out, features_in), drawn(features_out)
    mean, x = drawn(features_in), drawn(3, features_in)
    ends = {"low": torch.minimum(x.amin(0), mean), "high": torch.maximum(x.amax(0), mean)}
    ranges = {"a.input": x.abs().amax(0)[None], "a.input.mean": mean}
    ranges |= {f"a.input.{of}": value for of, value in ends.items()}
    given_ = {"a.weight": LazyTensor.of(weight), "a.bias": LazyTensor.of(bias)}
    linear = {"a": LinearFormat("fp8", "fp8", center=True)}
    formats = Quantization(linear, {}, 1.0, {})
    of_linear = Calibration(calibration.document, ranges)
    types = given_ | {
        "a.weight_scale": bias, "a.input_quantizer.scale": torch.ones(()),
        "a.input_quantizer.mean": mean,
    }  # fmt: skip
    found = quantized_state(types, given_, formats, of_linear)
    taken_off, folded = found["a.input_quantizer.mean"].load(), found["a.bias"].load()
    assert torch.equal(F.linear(x - taken_off, weight, folded), F.linear(x, weight, bias))
    # What is rounded lies in the range that the scale gives.
    reach = float(found["a.input_quantizer.scale"].load()) * 448
    assert float((x - taken_off).abs().max()) <= reach * (1 + 1e-6)


def test_the_ranges_of_another_calibration_are_found(model, stored):
    if not any(linear.static for linear in model.linears.values()):
        pytest.skip("the recipe has no scale of an input")
    other = {
        name: tensor if name.endswith(".input.mean") else tensor * 1.5
        for name, tensor in model.calibration.tensors.items()
    }
    foreign = replace(model, calibration=Calibration(model.calibration.document, other))
    with pytest.raises(BuildError, match="the calibration has"):
        check(stored, foreign)


def test_projections_share_quantized_input(config):
    linears = linears_of(supported_formats(load_recipe("int8-static"), config, ONNX))
    shared = {owner: [m.name for m in found] for owner, found in by_owner(linears.values()).items()}
    first = "blocks.0.attn1"
    assert shared[f"{first}.to_q"] == [f"{first}.to_{part}" for part in "qkv"]
    second = "blocks.0.attn2"
    assert shared[f"{second}.to_q"] == [f"{second}.to_q"]
    assert shared[f"{second}.to_k"] == [f"{second}.to_k", f"{second}.to_v"]
    assert len(shared) == 7 * config.transformer.layers


@pytest.mark.parametrize(
    ("recipe", "form", "what"),
    [
        ("fp8", ONNX, "blocks.0.attn1 in 8 bits"),
        (
            "kv-fp8",
            ONNX,
            "ring of blocks.0.attn1 in FP8, as ONNX's ScatterND, which writes it,",
        ),
        ("int8-attention", ONNX, "blocks.0.attn1 in 8 bits, which graphs of standard ONNX"),
        ("int8", TENSORRT, "per-token scales in blocks.0.attn1.to_q"),
        ("int8-attention", AOTI_GPU, "to_q in INT8, which is slower than one in bf16 on a Hopper"),
        ("int8", ONNX, "per-token scales in blocks.0.attn1.to_q"),
        ("fp8-dynamic", TENSORRT, "to_q, which TensorRT networks do not support yet"),
        ("int8", AOTI_GPU, "in INT8, which is slower than one in bf16 on a Hopper GPU"),
        ("int8-static", AOTI_GPU, "in INT8, which is slower than one in bf16 on a Hopper GPU"),
    ],
)
def test_rejects_unsupported_format_by_name(config, recipe, form, what):
    with pytest.raises(UnavailableError, match="VIDC-RECIPE-LOWERING") as raised:
        supported_formats(load_recipe(recipe), config, form)
    assert what in raised.value.message


@pytest.mark.parametrize(
    ("recipe", "support"),
    [("fp8", AOTI_GPU), ("fp8", TENSORRT), ("kv-int8", TENSORRT)],
    ids=["aoti", "tensorrt", "tensorrt, the ring alone"],
)
def test_rejects_ring_that_no_kernel_supports(recipe, support):
    heads_of_32 = resolve("tiny", environ={}, engines=False).model
    with pytest.raises(UnavailableError, match="VIDC-RECIPE-LOWERING") as raised:
        supported_formats(load_recipe(recipe), heads_of_32, support)
    assert "no kernel supports its ring ring.k.0: " in raised.value.message
    assert "a head size of 64 or 128, found 32" in raised.value.message
    assert "remove its [[attention]]" in raised.value.hint


@pytest.mark.parametrize("recipe", ["fp8", "fp8-int8-attention"])
def test_kernels_support_the_ring_of_the_demo(recipe):
    """The ring has 12 x 81 slots, no multiple of 16."""
    demo = resolve("demo", environ={}, engines=False).model
    rings = demo.quantized_part.attentions
    assert {ring.slots for ring in rings.values()} == {972}
    formats = supported_formats(load_recipe(recipe), demo, AOTI_GPU)
    assert all(fmt.computes for fmt in formats.attention.values())


def test_rejects_quantized_matmul_of_unsupported_size():
    config = resolve("tiny", assignments=["model.ffn_dim=136"], environ={}, engines=False).model
    recipe = load_recipe("fp8-linear")
    with pytest.raises(UnavailableError, match="VIDC-RECIPE-LOWERING") as raised:
        supported_formats(recipe, config, AOTI_GPU)
    assert "blocks.0.ffn.net.0.proj, whose sizes" in raised.value.message
    assert "136 are no multiples of 16" in raised.value.message
    supported_formats(load_recipe("int8-weight-only"), config, AOTI_GPU)
    supported_formats(load_recipe("int8-static"), config, ONNX)


@pytest.mark.parametrize("recipe", ["fp8-linear", "int8-weight-only"])
def test_longlive_s_weights_take_half_the_bytes_of_bf16(recipe):
    config = resolve("longlive-1.3b", gpu="h200", environ={}).model
    part, formats = config.quantized_part, supported_formats(load_recipe(recipe), config, AOTI_GPU)
    network = part.network("bf16")
    before = sum(tensor.nbytes for tensor in network.state_dict().values())
    quantized_components(part, formats, network)
    after = sum(tensor.nbytes for tensor in network.state_dict().values())
    assert 0.5 < after / before < 0.52


def test_scales_for_each_token_take_no_ranges(model):
    formats = supported_formats(load_recipe("fp8-dynamic"), model.config, AOTI_CPU)
    dynamic = replace(model, formats=formats, calibration=None)
    made = dynamic.state()
    check(made, dynamic)
    assert not any(".input_quantizer." in name for name in made)
    layer = "blocks.0.ffn.net.2"
    wrong = changed(made, f"{layer}.weight_scale", lambda t: t * 2)
    with pytest.raises(BuildError, match=fault(layer, "")):
        check(wrong, dynamic)


def test_smoothed_inputs_with_scales_for_each_token_take_ranges(model):
    formats = supported_formats(load_recipe("int8"), model.config, AOTI_CPU)
    with pytest.raises(ValueError, match="needs a calibration"):
        replace(model, formats=formats, calibration=None).state()
