"""Random weights of the smallest preset, with ranges that are drawn."""

import pytest
import quantized
from quantized import Drawn
from random_transformer import random_weights

from vidc.compiler.config.recipe import load_recipe, parse_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU, ONNX
from vidc.exporters.checkpoint.lazy import LazyTensor

CENTRED_INT8 = parse_recipe(
    {
        "description": "what is smoothed and centered",
        "linear": [
            {
                "layers": ["blocks.*.attn1.**", "blocks.*.attn2.**", "blocks.*.ffn.**"],
                "weights": "int8",
                "activations": "int8",
                "smooth": 0.8,
                "center": True,
            }
        ],
    },
    "int8-centered",
)


@pytest.fixture(scope="session")
def config():
    return resolve("tiny", gpu="cpu", environ={}).model


@pytest.fixture(scope="session")
def calibration(config):
    return quantized.calibration(config)


@pytest.fixture(scope="session")
def weights(config):
    return {n: LazyTensor.of(t) for n, t in random_weights(config.transformer, 1).items()}


@pytest.fixture(
    params=[
        ("int8-static", ONNX),
        (CENTRED_INT8, ONNX),
        ("int8-weight-only", ONNX),
        ("fp8-linear", AOTI_GPU),
        ("fp8-dynamic", AOTI_GPU),
        ("int8", AOTI_CPU),
    ],
    ids=lambda pair: getattr(pair[0], "name", pair[0]),
)
def model(request, config, calibration, weights):
    recipe, support = request.param
    recipe = load_recipe(recipe) if isinstance(recipe, str) else recipe
    return Drawn(config, weights, supported_formats(recipe, config, support), calibration)
