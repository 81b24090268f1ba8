"""Programs with values as outputs, built and loaded as a bundle's engines are."""

from dataclasses import replace

import fake_tensorrt
import pytest
import torch
from interpreted import component
from safetensors.torch import save_file

from vidc.compiler.backends import CompileOptions
from vidc.compiler.backends.native_graph import write_graph
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.config.resolve import resolve
from vidc.compiler.debug.probe import EngineProgram
from vidc.compiler.debug.rebuild import Rebuilder
from vidc.compiler.debug.reference import program_reference
from vidc.compiler.debug.search import relative_error
from vidc.runtime.manifest import PORTABLE, Engine
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
FP32 = {"transformer": "fp32", "vae": "fp32", "text_encoder": "fp32"}


def probed(settings, name, folder):
    """A component as an engine of a backend has it, and its reference."""
    made, given = component(settings, name)
    file = folder / "transformer.safetensors"
    save_file({key.removeprefix("transformer."): t for key, t in given.weights.items()}, file)
    given = replace(given, weights=Weights({"transformer": file}, CPU))
    entry = Engine(
        settings.backend, settings.backend, "0", "fp32", (f"engines/{name}.x",), made.signature,
        {}, PORTABLE,
    )  # fmt: skip
    rebuilder = Rebuilder(folder, entry, settings.target, given.weights, CPU, CompileOptions())
    native = settings.backend != "aoti"
    engine = EngineProgram(made, None, rebuilder, given, native)
    return engine, program_reference(made, given)


def worst(engine, reference, names):
    found, expected = engine.values(names), reference.values(names)
    return max(relative_error(found[name], expected[name]) for name in names)


def test_every_value_of_native_code_is_the_interpreters(tmp_path):
    settings = resolve("tiny", gpu="cpu", backend="aoti", environ={})
    engine, reference = probed(settings, "text_kv", tmp_path)
    assert len(engine.names) > 15
    assert worst(engine, reference, engine.names) < 1e-6


@pytest.fixture
def plans(monkeypatch):
    """TensorRT-RTX that parses and does not build: the stand-in's plans are the graphs."""
    written = []

    def keep(*arguments):
        graph = write_graph(*arguments)
        written.append(graph.path.read_bytes())
        return graph

    def plan(*arguments):
        return written[-1]

    monkeypatch.setattr("vidc.compiler.backends.native_graph.write_graph", keep)
    monkeypatch.setattr("vidc.compiler.backends.tensorrt.build.build_plan", plan)
    monkeypatch.setattr(
        "vidc.compiler.backends.tensorrt.built_layers.built_layers", lambda *_: None
    )
    version = PRODUCTS["tensorrt_rtx"].version()
    if version is None:
        pytest.skip("TensorRT-RTX is not installed")
    fake = fake_tensorrt.module("tensorrt_rtx", version)
    monkeypatch.setattr("vidc.runtime.engines.tensorrt.import_tensorrt", lambda name: fake)
    return written


@pytest.mark.parametrize("recipe", [None, "int8-static"])
def test_values_of_a_plan_are_the_interpreters(plans, tmp_path, recipe):
    """Its rings lie with their heads first, and what is in 8 bits goes by Q and DQ."""
    precision = "fp32" if recipe is None else "int8"
    settings = resolve("tiny", gpu="rtx4090", precision=precision, recipe=recipe, environ={})
    engine, reference = probed(replace(settings, precision=FP32), "kv_update", tmp_path)
    in_8_bits = [n for n in engine.names if "quantized_linear" in engine.operator(n)]
    assert bool(in_8_bits) == (recipe is not None)
    names = [*engine.names[3::5], *in_8_bits[:3]]
    assert worst(engine, reference, names) < (1e-5 if recipe is None else 1e-3)
    assert len(plans) == 1
