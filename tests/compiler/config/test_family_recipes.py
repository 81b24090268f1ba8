"""Recipes of families: chosen without --recipe, and refused where a backend lacks a format."""

import pytest

from vidc.compiler.backends import backend
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.support import AOTI_GPU, TENSORRT
from vidc.plugins.errors import UnavailableError


def resolved(preset, gpu, precision="int8", **options):
    return resolve(preset, gpu=gpu, precision=precision, environ={}, **options)


@pytest.mark.parametrize(
    ("preset", "recipe"),
    [("svd-tiny", "svd-int8"), ("svd-t4", "svd-int8"), ("diamond-csgo", "world-int8")],
)
def test_a_family_has_its_own_recipe(preset, recipe):
    settings = resolved(preset, "cpu")
    assert settings.quantization.recipe.name == recipe
    assert settings.origins["quantization.recipe"] == f"family {settings.family}"
    support = backend(settings.backend).quantization(settings.target)
    formats = supported_formats(settings.quantization.recipe, settings.model, support)
    narrow = [name for name, fmt in formats.linear.items() if fmt.computes]
    assert any("conv" in name for name in narrow)
    assert 0.5 < formats.flops_share <= 1


@pytest.mark.parametrize(
    ("gpu", "precision", "recipe"),
    [("cpu", "int8", "oasis-int8"), ("h100", "fp8", "oasis-fp8")],
)
def test_a_family_of_linear_layers_has_recipes_of_its_own(gpu, precision, recipe):
    settings = resolved("oasis-500m", gpu, precision)
    assert settings.quantization.recipe.name == recipe
    support = backend(settings.backend).quantization(settings.target)
    formats = supported_formats(settings.quantization.recipe, settings.model, support)
    narrow = {name.split(".")[2] for name, fmt in formats.linear.items() if fmt.computes}
    assert narrow == {"s_attn", "s_mlp", "t_attn", "t_mlp"}
    assert 0.5 < formats.flops_share <= 1


def test_the_target_s_recipe_stays_for_other_families():
    settings = resolved("tiny", "cpu")
    assert settings.quantization.recipe.name == "int8-static"
    assert settings.origins["quantization.recipe"] == "target cpu"


@pytest.mark.parametrize("preset", ["svd-t4", "diamond-csgo"])
def test_tensorrt_takes_convolutions_that_aoti_refuses(preset):
    settings = resolved(preset, "cpu")
    recipe = settings.quantization.recipe
    formats = supported_formats(recipe, settings.model, TENSORRT)
    assert any(fmt.computes for name, fmt in formats.linear.items() if "conv" in name)
    with pytest.raises(UnavailableError, match=r"the convolution .* in INT8") as caught:
        supported_formats(recipe, settings.model, AOTI_GPU)
    assert caught.value.code == "VIDC-RECIPE-LOWERING"
    assert "pass --backend tensorrt, or pass --recipe" in caught.value.hint


def test_a_precision_without_a_recipe_names_one_with():
    with pytest.raises(UnavailableError, match="VIDC-RECIPE-NONE") as caught:
        resolved("svd", "h100", "fp8")
    assert "--precision int8" in caught.value.hint
