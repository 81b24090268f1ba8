"""Random weights of the smallest preset, with ranges that are drawn."""

from dataclasses import dataclass

import pytest
import torch

from vidc.compiler.calibrate.artefact import Calibration, model_tables
from vidc.compiler.calibrate.document import SCHEMA, Document, FileNote, PromptsNote, Rollouts
from vidc.compiler.calibrate.groups import groups
from vidc.compiler.calibrate.tensors import tensor_shapes
from vidc.compiler.quantise.lowering import QuantizedLinear, quantized_linears
from vidc.compiler.recipe.recipe import load_recipe
from vidc.compiler.settings.resolve import resolve
from vidc.compiler.stream import stream_spec
from vidc.exporters.causal_wan.random_weights import random_weights
from vidc.exporters.checkpoint.lazy import LazyTensor


@dataclass(frozen=True)
class Model:
    """What is quantised."""

    weights: dict[str, LazyTensor]
    linears: dict[str, QuantizedLinear]
    calibration: Calibration


@pytest.fixture(scope="session")
def config():
    return resolve("tiny", gpu="cpu", environ={}).model


@pytest.fixture(scope="session")
def calibration(config):
    stream = stream_spec(config)
    drawn = torch.Generator().manual_seed(0)
    shapes = tensor_shapes(config, len(groups(stream)))
    # No two tensors reach equally far.
    tensors = {
        name: (torch.rand(shape, generator=drawn) + 0.1) * (1 + index / 50)
        for index, (name, shape) in enumerate(shapes.items())
    }
    document = Document(
        SCHEMA, "ab" * 32, {}, model_tables(config), "fp32", "cpu",
        PromptsNote("synthetic", 2, "cd" * 32), 0, Rollouts("max", 6, 5), groups(stream), {},
        FileNote(0, ""),
    )  # fmt: skip
    return Calibration(document, tensors)


@pytest.fixture(params=["int8-static", "fp8-linear", "int8-weight-only"])
def model(request, config, calibration):
    weights = {n: LazyTensor.of(t) for n, t in random_weights(config.transformer, 1)}
    linears = quantized_linears(load_recipe(request.param), config)
    return Model(weights, linears, calibration)
