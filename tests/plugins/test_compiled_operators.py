import shutil

import attention_layer
import layer
import pytest
import torch

from vidc.compiler.backends.aoti.inductor import compile_package

CPU = torch.device("cpu")
OPERATORS = {"gelu_quantize", "qk_norm_rope_ring_write", "qk_norm_rope_ring_write_static"}
ATTENTION = {"qk_norm_rope_ring_write_static", "ring_attention_8bit"}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture(scope="module")
def program():
    return torch.export.export(layer.Layer(), tuple(layer.arguments(CPU)))


@pytest.fixture(scope="module")
def attention():
    return torch.export.export(
        attention_layer.AttentionLayer(), tuple(attention_layer.arguments(CPU))
    )


def test_export_keeps_operators_and_their_writes(program):
    layer.same_as_eager(program.module(), CPU)
    program = program.run_decompositions({})
    text = program.graph_module.print_readable(print_output=False)
    assert all(f"vidc.{name}.default" in text for name in OPERATORS)
    written = program.graph_signature.user_inputs_to_mutate.values()
    assert set(written) == {"keys", "values", "keys_8bit", "values_8bit"}


def test_export_attends_to_the_written_ring(attention):
    attention_layer.same_as_eager(attention.module(), CPU)
    decomposed = attention.run_decompositions({})
    text = decomposed.graph_module.print_readable(print_output=False)
    assert all(f"vidc.{name}.default" in text for name in ATTENTION)
    assert set(decomposed.graph_signature.user_inputs_to_mutate.values()) == {"keys", "values"}


@needs_compiler
def test_torch_compile_calls_operators():
    layer.same_as_eager(torch.compile(layer.Layer(), fullgraph=True), CPU)


@needs_compiler
def test_aotinductor_calls_operators(program, tmp_path):
    package = tmp_path / "layer.pt2"
    compile_package(program, package)
    engine = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", True, 1, -1)
    layer.same_as_eager(lambda *given: engine.boxed_run(list(given)), CPU)


@needs_compiler
def test_torch_compile_calls_attention():
    compiled = torch.compile(attention_layer.AttentionLayer(), fullgraph=True)
    attention_layer.same_as_eager(compiled, CPU)


@needs_compiler
def test_aotinductor_calls_attention(attention, tmp_path):
    package = tmp_path / "attention.pt2"
    compile_package(attention, package)
    engine = torch._C._aoti.AOTIModelPackageLoader(str(package), "model", True, 1, -1)
    attention_layer.same_as_eager(lambda *given: engine.boxed_run(list(given)), CPU)
