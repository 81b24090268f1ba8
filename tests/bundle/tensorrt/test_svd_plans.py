"""Plans of Stable Video Diffusion for a T4, built by TensorRT-RTX without a GPU. None has run."""

from dataclasses import replace
from functools import partial

import pytest
import tiny_svd

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends.tensorrt.backend import TensorRtBackend
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.plan import inspect_plan
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.modules import quantized_components
from vidc.exporters.export import export_component
from vidc.plugins.errors import BuildError

pytestmark = pytest.mark.deep
T4 = replace(targets()["t4"], tensorrt="tensorrt_rtx")
"""A T4, with the product that needs none to build for it."""


def plan(component, tmp_path, recipe=None):
    """Builds a component's plan in fp16, its layers quantized by a recipe."""
    svd = tiny_svd.model("model.layers=1")
    exported, output = tmp_path / "exported", tmp_path / "output"
    exported.mkdir()
    output.mkdir()
    part = svd.parts[svd.components[component]]
    quantize = None
    if recipe is not None:
        support = TensorRtBackend().quantization(T4)
        formats = supported_formats(load_recipe(recipe), svd, support)
        quantize = partial(quantized_components, part, formats)
    made = export_component(part, "fp16", component, exported, quantize, None)
    engine = TensorRtBackend().compile(made, T4, {}, output)
    return inspect_plan(output / engine.files[0])


@pytest.mark.parametrize("component", ["image_encoder", "condition_clip", "denoise", "vae_decode"])
def test_builds_for_turing(component, tmp_path):
    found = plan(component, tmp_path)
    assert found.plan.architectures == ("sm75",)
    layers = found.network.layers
    products = layers.get("convolution", {}) | layers.get("matrix_multiply", {})
    assert "half" in products


def test_every_quantized_layer_of_the_unet_is_in_int8_on_turing(tmp_path):
    found = plan("denoise", tmp_path, "svd-int8")
    assert found.plan.architectures == ("sm75",)
    layers = {each.weight.removeprefix("unet.").removesuffix(".weight"): each.name
              for each in found.network.quantized}  # fmt: skip
    convolutions = {name for name in layers if name.endswith(("conv1", "conv2", ".conv"))}
    assert (len(layers), len(convolutions)) == (174, 34)
    assert found.unfused == ()
    assert {*layers.values()} == {*found.plan.products}
    kinds = {each.kind for each in found.engine.layers if {*layers.values()} & {*each.nodes}}
    assert kinds == {"gemm"}


def test_the_encoder_s_float32_is_refused(tmp_path):
    """Stable Video Diffusion encodes its image in float32, and Turing has no such matmul there."""
    with pytest.raises(BuildError, match=r"VIDC-TENSORRT-BUILD[\s\S]*FP32 GEMM is not supported"):
        plan("vae_encode", tmp_path)
