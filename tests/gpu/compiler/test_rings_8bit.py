"""Engines whose rings alone are in 8 bits on a Hopper GPU, beside what their programs mean."""

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
from vidc.compiler.quantize.support import AOTI_GPU
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.program import export_program, load_program, save_program
from vidc.runtime import manifest
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=256")
BLOCKS = 5
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
ALLOWED = 0.05
"""An engine for a CPU has up to 0.029 in bf16; a wrong scale costs far more."""


@pytest.fixture(scope="module")
def target(library, hopper):
    return next(t for t in targets().values() if t.compute_capability == "9.0")


@pytest.fixture(scope="module")
def model():
    return transformer.model(*SMALL)


def error(found, expected):
    return ((found.double() - expected.double()).norm() / expected.double().norm()).item()


@pytest.mark.parametrize("name", transformer.COMPONENTS)
@pytest.mark.parametrize("recipe", ["kv-fp8", "kv-int8"])
def test_an_engine_computes_what_the_program_means(
    target, model, attention_cubin, tmp_path, recipe, name
):
    component = model.component(name, "bf16")
    exported = ExportedComponent(name, tmp_path, component.signature)
    save_program(export_program(component), exported.program)
    (tmp_path / "made").mkdir()
    quantized = Quantized(model, load_recipe(recipe), AOTI_GPU)
    plain = {key: value.bfloat16() for key, value in model.weights.items()}
    made = programs.write(
        exported, replace(exported, folder=tmp_path / "made"), "transformer", plain,
        quantized.linears, quantized.attentions,
    )  # fmt: skip
    kept = {
        key: value.bfloat16()
        if key.removeprefix("transformer.") in plain and value.dtype == torch.float32
        else value
        for key, value in quantized.weights.items()
    }
    program = load_program(made.program)
    for weight in program.state_dict:
        program.state_dict[weight] = nn.Parameter(kept[weight], requires_grad=False)

    output = tmp_path / "engine"
    kernels = {"flash_attention": attention_cubin("bfloat16", 64).parent}
    compiled = backend.compile(made, target, kernels, output)
    save_file(
        {n.removeprefix("transformer."): t.contiguous() for n, t in kept.items()},
        output / "transformer.safetensors",
    )
    entry = manifest.Engine(
        "aoti", compiled.loader, compiled.version, "fp8", compiled.files, compiled.signature,
        dict(compiled.options), compiled.requires,
    )  # fmt: skip
    weights = Weights({"transformer": output / "transformer.safetensors"}, CUDA)
    engine = load(Files(output), entry, weights, CUDA)

    rings = [spec.name for spec in engine.signature.states if spec.name.startswith("ring.")]
    narrow = [spec for spec in engine.signature.states if spec.rounding is not None]
    assert [spec.name for spec in narrow] == rings
    assert {spec.torch_dtype.itemsize for spec in narrow} == {1}
    states, buffers = States([engine.signature], CUDA), Buffers(engine.signature, CUDA)
    filled = transformer.filled(component.signature)
    wanted = {
        spec.name: torch.zeros(spec.shape, dtype=spec.torch_dtype)
        if spec.name in rings
        else filled[spec.name]
        for spec in made.signature.states
    }
    for key, value in wanted.items():
        if key not in rings:
            states[key].copy_(value)
    worst = 0.0
    for block in transformer.blocks(component.signature, 0, BLOCKS):
        given = block | wanted
        with torch.no_grad():
            expected = program.module()(*(given[s.name] for s in made.signature.arguments))
        buffers.set(block)
        engine.run(buffers, states)
        torch.cuda.synchronize()
        for spec, one in zip(engine.signature.outputs, expected, strict=True):
            off = error(buffers[spec.name].cpu(), one)
            worst = max(worst, off)
    for spec in narrow:
        other = made.signature[spec.name]
        found = spec.dequantize(states[spec.name].cpu(), kept.__getitem__)
        one = wanted[spec.name]
        one = one.float() if other.rounding is None else other.dequantize(one, kept.__getitem__)
        off = error(found, one)
        worst = max(worst, off)
    assert worst < ALLOWED
