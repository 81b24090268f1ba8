"""Engines with 8-bit rings and 16-bit matmuls on a Hopper GPU, against the quantized modules."""

import pytest
import torch
import transformer
from gpu_engines import CUDA, error, loaded
from quantized import Quantized
from safetensors.torch import save_file

from vidc.compiler.backends.aoti.backend import backend
from vidc.compiler.config.recipe import load_recipe, parse_recipe
from vidc.plugins.transposed_values import stored_at
from vidc.runtime.states import Buffers, States

SMALL = ("model.dim=128", "model.heads=2", "model.ffn_dim=256")
DEMO = ("model.dim=256", "model.heads=4", "stream.height=144", "stream.width=144")
"""Heads and ring of the demo: 972 slots, no multiple of 16."""
BLOCKS = 5
LARGEST = 0x7E
"""Content of padding: the largest number of FP8, and nearly that of INT8."""
ALLOWED = 0.05
"""An engine for a CPU has up to 0.029 in bf16; a wrong scale costs far more."""


def attention(kind):
    """A recipe with quantized attention alone, which the kernels' ring layout is for."""
    rule = {"layers": ["blocks.*.attn1"], "queries": kind, "keys": kind, "values": kind,
            "center": True}  # fmt: skip
    return parse_recipe({"description": "some", "attention": [rule]}, kind)


@pytest.mark.parametrize("name", transformer.COMPONENTS)
@pytest.mark.parametrize(
    ("recipe", "sizes"),
    [
        (load_recipe("kv-fp8"), SMALL),
        (load_recipe("kv-int8"), SMALL),
        (attention("fp8"), SMALL),
        (attention("int8"), SMALL),
        (attention("fp8"), DEMO),
        (attention("int8"), DEMO),
    ],
    ids=["kv-fp8", "kv-int8", "attention-fp8", "attention-int8", "demo-fp8", "demo-int8"],
)
def test_engine_computes_what_the_modules_compute(
    target, attention_cubin, tmp_path, recipe, sizes, name
):  # fmt: skip
    quantized = Quantized(transformer.model(*sizes), recipe)
    component, stored = quantized.component(name, "bf16"), quantized.state("bf16")
    output = tmp_path / "engine"
    kernels = {"flash_attention": attention_cubin("bfloat16", 64).parent}
    exported = quantized.exported(name, "bf16", tmp_path, onnx=False)
    compiled = backend.compile(exported, target, kernels, output)
    save_file(stored, output / "transformer.safetensors")
    engine, _ = loaded(compiled, "fp8", output)

    rings = [spec.name for spec in engine.signature.states if spec.name.startswith("ring.")]
    narrow = [spec for spec in engine.signature.states if spec.rounding is not None]
    assert [spec.name for spec in narrow] == rings
    assert {spec.torch_dtype.itemsize for spec in narrow} == {1}
    states, buffers = States([engine.signature], CUDA), Buffers(engine.signature, CUDA)
    filled, eager = transformer.filled(component.signature), {}
    for spec in component.signature.states:
        eager[spec.name] = filled[spec.name]
        if spec.name in rings:
            eager[spec.name] = torch.zeros(spec.shape, dtype=spec.torch_dtype)
        else:
            states[spec.name].copy_(filled[spec.name])
    padded = [states[s.name].view(torch.int8) for s in narrow if s.rounding.padding]
    assert bool(padded) == (sizes is DEMO)
    padding = stored_at(torch.arange(972, 976, device=CUDA))
    for ring in padded:
        ring[..., padding] = LARGEST
    worst = 0.0
    for block in transformer.blocks(component.signature, 0, BLOCKS):
        given = block | eager
        with torch.no_grad():
            expected = component.module(*(given[s.name] for s in component.signature.arguments))
        buffers.set(block)
        engine.run(buffers, states)
        torch.cuda.synchronize()
        for spec, one in zip(engine.signature.outputs, expected, strict=True):
            worst = max(worst, error(buffers[spec.name].cpu(), one))
    weights_of = quantized.weights.__getitem__
    for spec in narrow:
        found = spec.dequantize(states[spec.name].cpu(), weights_of)
        expected = component.signature[spec.name].dequantize(eager[spec.name], weights_of)
        worst = max(worst, error(found, expected))
    assert worst < ALLOWED
    assert all((ring[..., padding] == LARGEST).all() for ring in padded)
