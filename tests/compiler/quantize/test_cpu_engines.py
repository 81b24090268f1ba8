"""Engines of aoti for a CPU hold all of a recipe, as the operators' references compute it."""

import shutil
from dataclasses import replace

import pytest
import torch
import transformer
from quantized import Quantized
from safetensors.torch import save_file
from torch import nn

from vidc.compiler.backends.aoti.backend import backend
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.targets import targets
from vidc.compiler.quantize import programs
from vidc.compiler.quantize.support import AOTI_CPU
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.program import export_program, load_program, save_program
from vidc.runtime import manifest
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=128", "stream.height=32")
CPU = torch.device("cpu")


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
@pytest.mark.parametrize(
    "recipe",
    [
        "fp8-int8-attention",
        "int8",
        *(
            pytest.param(name, marks=pytest.mark.deep)
            for name in ("int8-static", "int8-attention", "fp8-dynamic")
        ),
    ],
)
def test_engine_matches_program(recipe, tmp_path):
    model = transformer.model(*SMALL)
    component = model.component("denoise", "fp32")
    exported = ExportedComponent("denoise", tmp_path, component.signature)
    save_program(export_program(component), exported.program)
    (tmp_path / "made").mkdir()
    quantized = Quantized(model, load_recipe(recipe), AOTI_CPU)
    made = programs.write(
        exported, replace(exported, folder=tmp_path / "made"), "transformer", model.weights,
        quantized.linears, quantized.attentions,
    )  # fmt: skip
    assert {s.dtype for s in made.signature.states} == {"float32"}
    program = load_program(made.program)
    for name in program.state_dict:
        program.state_dict[name] = nn.Parameter(quantized.weights[name], requires_grad=False)

    output = tmp_path / "engine"
    output.mkdir()
    compiled = backend.compile(made, targets()["cpu"], {}, output)
    stored = {n.removeprefix("transformer."): t for n, t in quantized.weights.items()}
    save_file(stored, tmp_path / "transformer.safetensors")
    entry = manifest.Engine(
        "aoti", compiled.loader, compiled.version, "fp8", compiled.files, compiled.signature,
        dict(compiled.options), compiled.requires,
    )  # fmt: skip
    weights = Weights({"transformer": tmp_path / "transformer.safetensors"}, CPU)
    engine = load(Files(output), entry, weights, CPU)

    states, buffers = States([engine.signature], CPU), Buffers(engine.signature, CPU)
    filled = transformer.filled(component.signature)
    filled |= {n: torch.zeros_like(t) for n, t in filled.items() if n.startswith("ring.")}
    plain = {name: value.clone() for name, value in filled.items()}
    for name, value in filled.items():
        states[name].copy_(value)
    for block in transformer.blocks(component.signature, 0):
        given = block | filled
        high = block | plain
        with torch.no_grad():
            (expected,) = program.module()(*(given[s.name] for s in made.signature.arguments))
            (exact,) = component.module(*(high[s.name] for s in component.signature.arguments))
        buffers.set(block)
        engine.run(buffers, states)
        # What rounds to another number of 8 bits is a step off, of which later blocks have some.
        assert error(buffers.outputs["flow"], expected) < 0.02
        assert error(expected, exact) > 0.01
