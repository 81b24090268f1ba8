"""Layers of a network in memory as quantized modules, against arithmetic by hand."""

import pytest
import torch
from modelopt_here import needs_modelopt
from outlier import INT8, recipe_of
from quantized import Drawn

from vidc.compiler.config.recipe import AttentionFormat, LinearFormat
from vidc.compiler.quantize.apply import apply_recipe
from vidc.compiler.quantize.modules import KvQuantizer, QuantizedLinear
from vidc.compiler.validate.reference import part_engines
from vidc.exporters.checkpoint.lazy import LazyTensor

pytestmark = needs_modelopt
LAYER = "blocks.0.ffn.net.2"


def stored(model, recipe):
    """The layer's tensors as a build stores them."""
    weights = {name: LazyTensor.of(tensor) for name, tensor in model.network.state_dict().items()}
    formats = apply_recipe(recipe, model.config)
    state = Drawn(model.config, weights, formats, model.calibration).state()
    return {name: tensor.load() for name, tensor in state.items() if name.startswith(LAYER)}


@pytest.mark.parametrize(("smooth", "center"), [(0.0, False), (0.8, False), (0.8, True)])
@pytest.mark.parametrize("form", ["int8", "fp8"])
@pytest.mark.parametrize("scale", ["static", "dynamic"])
def test_linear_uses_the_tensors_of_a_build(model, form, scale, smooth, center):
    recipe = recipe_of(LinearFormat(form, form, scale, smooth, center))
    tensors, layers = stored(model, recipe), model.layers(recipe)
    original = model.linear(LAYER)
    x = torch.randn(2, 7, original.in_features, generator=torch.Generator().manual_seed(5))
    with layers.quantized([LAYER]):
        found = model.network.get_submodule(LAYER)(x)
    factor = tensors.get(f"{LAYER}.input_quantizer.pre_quant_scale", torch.ones(()))
    mean = tensors.get(f"{LAYER}.input_quantizer.mean", torch.zeros(()))
    assert mean.any() == center
    inputs = (x.double() - mean.double()) * factor.double()
    largest = 127 if form == "int8" else 448
    if scale == "static":
        step = tensors[f"{LAYER}.input_quantizer.scale"].double()
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
    tensors, layers = stored(model, recipe), model.layers(recipe)
    x = torch.randn(3, 192, generator=torch.Generator().manual_seed(5))
    with layers.quantized([LAYER]):
        found = model.network.get_submodule(LAYER)(x)
    weight = tensors[f"{LAYER}.weight"].float() * tensors[f"{LAYER}.weight_scale"][:, None]
    torch.testing.assert_close(found, x @ weight.T + model.linear(LAYER).bias)


def test_network_is_restored_after_errors(model):
    layers = model.layers(recipe_of(INT8, AttentionFormat("int8", "int8", "int8")))
    before = dict(model.network.named_modules())

    def stopped():
        with layers.quantized([LAYER, "blocks.1.attn1"]):
            assert isinstance(model.network.get_submodule(LAYER), QuantizedLinear)
            ring = model.network.get_submodule("blocks.1.attn1.ring")
            assert isinstance(ring.keys, KvQuantizer)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert dict(model.network.named_modules()) == before
    with pytest.raises(KeyError), layers.quantized([LAYER, "proj_out"]):
        pass
    assert dict(model.network.named_modules()) == before


def test_rings_of_switched_layers_are_8bit_states(model):
    part, layers = (
        model.config.quantized_part,
        model.layers(recipe_of(None, AttentionFormat(keys="int8", center=True))),
    )
    with layers.quantized(["blocks.1.attn1"]):
        signature = part_engines(part, model.network)["denoise"].signature
    dtypes = {s.name: s.dtype for s in signature.states if s.name.startswith("ring.")}
    assert dtypes == {
        "ring.k.0": "float32", "ring.k.1": "int8", "ring.v.0": "float32", "ring.v.1": "float32",
    }  # fmt: skip
