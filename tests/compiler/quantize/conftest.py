"""Random weights of the smallest preset, with ranges that are drawn."""

from dataclasses import dataclass

import pytest
import quantized

from vidc.compiler.config.recipe import load_recipe, parse_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.quantize.artifact import Calibration
from vidc.compiler.quantize.lowering import QuantizedLinear, quantized_linears
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU, ONNX, QuantizationSupport
from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.parts.causal_wan.random_weights import random_weights

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


@dataclass(frozen=True)
class Model:
    """Weights of a model, the linear layers to quantize, and their calibration."""

    weights: dict[str, LazyTensor]
    linears: dict[str, QuantizedLinear]
    calibration: Calibration
    form: QuantizationSupport


@pytest.fixture(scope="session")
def config():
    return resolve("tiny", gpu="cpu", environ={}).model


@pytest.fixture(scope="session")
def calibration(config):
    return quantized.calibration(config)


@pytest.fixture(
    params=[
        ("int8-static", ONNX),
        ("fp8-linear", ONNX),
        (CENTRED_INT8, ONNX),
        ("int8-weight-only", ONNX),
        ("fp8-linear", AOTI_GPU),
        ("int8-weight-only", AOTI_GPU),
        ("fp8-dynamic", AOTI_GPU),
        ("int8", AOTI_CPU),
    ],
    ids=lambda pair: f"{getattr(pair[0], 'name', pair[0])} {pair[1].name}",
)
def model(request, config, calibration):
    recipe, form = request.param
    recipe = load_recipe(recipe) if isinstance(recipe, str) else recipe
    weights = {n: LazyTensor.of(t) for n, t in random_weights(config.transformer, 1)}
    linears = quantized_linears(recipe, config, form)
    return Model(weights, linears, calibration, form)
