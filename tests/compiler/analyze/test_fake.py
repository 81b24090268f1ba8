"""Layers in the numbers of 8 bits, against what a build stores and sums by hand."""

import pytest
import torch
from modelopt_here import needs_modelopt
from outlier import INT8, planted, recipe_of
from torch import nn

from vidc.compiler.config.formats import AttentionFormat, LinearFormat
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.arithmetic import quantize, scale_of
from vidc.compiler.quantize.fake import FakeAttention, FakeLinear, FakeQuantizer
from vidc.compiler.quantize.lowering import linears_of
from vidc.compiler.quantize.support import AOTI_GPU, ONNX
from vidc.compiler.quantize.weights import quantized_weights
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.models import with_weights
from vidc.plugins.ops.fake_quantize import fake_quantize_reference

pytestmark = needs_modelopt
LAYER = "blocks.0.ffn.net.2"


def stored(model, recipe):
    linears = linears_of(apply_recipe(recipe, model.config))
    weights = {name: LazyTensor.of(tensor) for name, tensor in _weights(model)}
    found = quantized_weights(weights, linears, model.calibration)
    return {name: tensor.load() for name, tensor in found.items() if LAYER in name}


def _weights(model):
    for name, module in model.network.named_modules():
        if isinstance(module, nn.Linear) and name.startswith("blocks."):
            yield f"{name}.weight", module.weight
            yield f"{name}.bias", module.bias


@pytest.mark.parametrize(("smooth", "center"), [(0.0, False), (0.8, False), (0.8, True)])
@pytest.mark.parametrize("form", ["int8", "fp8"])
@pytest.mark.parametrize("scale", ["static", "dynamic"])
def test_fake_linear_uses_stored_tensors(model, form, scale, smooth, center):
    recipe = recipe_of(LinearFormat(form, form, scale, smooth, center))
    tensors, quantizer = stored(model, recipe), model.quantizer(recipe)
    original = model.linear(LAYER)
    x = torch.randn(2, 7, original.in_features, generator=torch.Generator().manual_seed(5))
    with quantizer.quantized([LAYER]):
        found = model.network.get_submodule(LAYER)(x)
    factor = tensors.get(f"{LAYER}.input_factor", torch.ones(()))
    mean = tensors.get(f"{LAYER}.input_mean", torch.zeros(()))
    assert mean.any() == center
    inputs = (x.double() - mean.double()) * factor.double()
    largest = 127 if form == "int8" else 448
    if scale == "static":
        step = tensors[f"{LAYER}.input_scale"].double()
    else:
        step = inputs.abs().amax(-1, keepdim=True) / largest
    steps = (inputs / step).clamp(-largest, largest)
    rounded = steps.round() if form == "int8" else steps.to(torch.float8_e4m3fn).double()
    weight = (
        tensors[f"{LAYER}.weight"].double() * tensors[f"{LAYER}.weight_scale"].double()[:, None]
    )
    expected = (rounded * step) @ weight.T + tensors[f"{LAYER}.bias"].double()
    # A value in the middle between two steps may fall to either side.
    error = (found.double() - expected).norm() / expected.norm()
    assert error < (1e-3 if scale == "dynamic" else 2e-4)
    exact = torch.nn.functional.linear(x, original.weight, original.bias)
    assert (found - exact).norm() > 1e-3 * exact.norm()


def test_weight_only_linear(model):
    recipe = recipe_of(LinearFormat("int8"))
    tensors, quantizer = stored(model, recipe), model.quantizer(recipe)
    x = torch.randn(3, 192, generator=torch.Generator().manual_seed(5))
    with quantizer.quantized([LAYER]):
        found = model.network.get_submodule(LAYER)(x)
    weight = tensors[f"{LAYER}.weight"].float() * tensors[f"{LAYER}.weight_scale"][:, None]
    bias = model.linear(LAYER).bias
    torch.testing.assert_close(found, x @ weight.T + bias)


def test_network_is_restored_after_errors(model):
    rings = AttentionFormat("int8", "int8", "int8")
    quantizer = model.quantizer(recipe_of(INT8, rings))
    before = dict(model.network.named_modules())

    def stopped():
        with quantizer.quantized([LAYER, "blocks.1.attn1"]):
            assert isinstance(model.network.get_submodule(LAYER), FakeLinear)
            assert quantizer.quantizes_attention
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert dict(model.network.named_modules()) == before
    assert not quantizer.quantizes_attention
    with pytest.raises(KeyError), quantizer.quantized([LAYER, "proj_out"]):
        pass
    assert dict(model.network.named_modules()) == before


@pytest.mark.parametrize("scale", ["static", "dynamic"])
@pytest.mark.parametrize("center", [False, True])
def test_keys_are_within_half_a_step(model, center, scale):
    form = AttentionFormat("int8", "int8", "int8", scale, center)
    name = "blocks.0.attn1"
    attention = FakeAttention(name, form, model.calibration, torch.device("cpu"))
    ranges = model.calibration.tensors
    low, high = ranges[f"{name}.k.low"], ranges[f"{name}.k.high"]
    drawn = torch.rand(1, 50, *low.shape, generator=torch.Generator().manual_seed(1))
    keys = low + drawn * (high - low)
    mean = ranges[f"{name}.k.mean"] if center else torch.zeros_like(low)
    rest = keys - mean
    amax = torch.maximum(high - mean, mean - low).amax(-1, keepdim=True)
    if scale == "dynamic":
        amax = rest.abs().amax(-1, keepdim=True)
    error = (attention.quantized("k", keys) - keys).abs()
    assert (error <= amax / 127 * 0.501).all()
    assert error.max() > 0.4 * float((amax / 127).min())


@pytest.mark.parametrize("scale", ["static", "dynamic"])
@pytest.mark.parametrize("form", ["int8", "fp8"])
def test_queries_have_the_scales_that_engines_give_them(model, form, scale):
    attention = FakeAttention(
        "blocks.0.attn1", AttentionFormat(form, form, form, scale), model.calibration,
        torch.device("cpu"),
    )  # fmt: skip
    heads, head_dim = model.calibration.tensors["blocks.0.attn1.k.low"].shape
    # Far beyond what was recorded of them.
    queries = 1e3 * torch.randn(2, 9, heads, head_dim, generator=torch.Generator().manual_seed(2))
    dtype = {"int8": "int8", "fp8": "float8_e4m3fn"}[form]
    expected = fake_quantize_reference(queries, None, None, dtype)
    assert torch.equal(attention.quantized("q", queries), expected)


def test_high_precision_parts_are_unchanged(model):
    form = AttentionFormat(keys="fp8", center=True)
    attention = FakeAttention("blocks.1.attn1", form, model.calibration, torch.device("cpu"))
    x = torch.randn(1, 4, 3, 32)
    assert attention.quantized("q", x) is x
    assert attention.quantized("v", x) is x
    assert not torch.equal(attention.quantized("k", x), x)


@pytest.mark.parametrize("form", [INT8, LinearFormat("fp8", "fp8", "dynamic"), LinearFormat("fp8")])
def test_in_16_bits_only_the_result_is_rounded(form):
    """Products of 8 bits are summed in float32, as kernels do it."""
    generator = torch.Generator().manual_seed(2)
    linear = nn.Linear(64, 32).to(torch.bfloat16).requires_grad_(False)
    linear.weight.copy_(torch.randn(32, 64, generator=generator))
    scale = scale_of(linear.weight.float().abs().amax(1), form.weights).to(torch.bfloat16)
    values = quantize(linear.weight, scale[:, None], form.weights)
    x = torch.randn(5, 64, generator=generator).to(torch.bfloat16)
    fake = FakeLinear(
        linear,
        form,
        values,
        scale,
        None,
        torch.tensor(0.03) if form.scale == "static" else None,
        None,
    )
    found, exact = fake(x), linear(x)
    assert found.dtype == torch.bfloat16
    error = (found.float() - exact.float()).norm() / exact.float().norm()
    assert 0.003 < error < 0.06


def test_scales_are_of_the_dtype_that_the_backend_stores(model):
    """A channel of small weights has a scale that float16 holds in coarse steps, float32 not."""
    weights = {name: tensor.half() for name, tensor in planted(model.config).items()}
    weights[f"{LAYER}.weight"] *= 2**-13
    network = with_weights(model.config.parts["transformer"].network("fp16"), weights)
    linear = network.get_submodule(LAYER)
    x = torch.eye(linear.in_features).half() * 2**12
    formats = apply_recipe(load_recipe("int8-weight-only"), model.config)
    errors = []
    for form in (AOTI_GPU, ONNX):
        quantizer = FakeQuantizer(network, formats, None, support=form)
        with quantizer.quantized([LAYER]), torch.no_grad():
            found = network.get_submodule(LAYER)(x).float()
        exact = linear(x).float()
        errors.append(float((found - exact).norm() / (exact - linear.bias.float()).norm()))
    of_program, of_graph = errors
    assert of_program < 0.02
    assert of_graph > 2 * of_program
