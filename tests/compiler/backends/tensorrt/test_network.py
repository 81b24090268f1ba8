"""Errors of TensorRT-RTX's parser and builder for wrong graphs."""

import sys
from pathlib import Path
from types import SimpleNamespace

import onnx
import pytest

pytest.importorskip("tensorrt_rtx")

from vidc.compiler.backends import CompileOptions, GraphError
from vidc.compiler.backends.native_graph import Graph
from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.built_layers import Log, new_builder
from vidc.compiler.backends.tensorrt.network import Network, attention_layers, parse
from vidc.compiler.backends.tensorrt.plan import fused_attentions
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.config.targets import targets
from vidc.plugins.errors import BuildError
from vidc.plugins.signature import Signature

RTX = PRODUCTS["tensorrt_rtx"]
TARGET = targets()["rtx4090"]
ATTENTION = """
<ir_version: 10, opset_import: ["" : 24]>
toy ({dtype}[{batch}, 2, 64, {width}] q, {dtype}[{batch}, 2, 128, {width}] k,
     {dtype}[{batch}, 2, 128, {width}] v, int64[1] valid_length)
 => ({dtype}[{batch}, 2, 64, {width}] y) {{
  sizes = Constant <value = int64[1] {{{batch}}}> ()
  lengths = Expand(valid_length, sizes)
  [ring] y = Attention(q, k, v, , , , lengths)
}}
"""


def graph(folder: Path, text: str, ring: frozenset[str] = frozenset()) -> Graph:
    model = onnx.parser.parse_model(text)
    onnx.checker.check_model(model)
    path = folder / "toy.onnx"
    onnx.save(model, path)
    return Graph(path, Signature(()), ring)


def attention(folder: Path, dtype: str = "float16", width: int = 64, batch: int = 1) -> Graph:
    return graph(
        folder, ATTENTION.format(dtype=dtype, width=width, batch=batch), frozenset({"ring"})
    )


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(("dtype", "fused"), [("float16", 1), ("bfloat16", 1), ("float", 0)])
def test_attention_over_the_ring_reads_its_length_and_is_fused(tmp_path, dtype, fused, batch):
    network = parse("toy", attention(tmp_path, dtype, batch=batch), RTX)
    (layer,) = attention_layers(RTX.module(), network.definition)
    assert layer.name == "ring"
    assert tuple(layer.key_value_lengths.shape) == (batch,)
    assert layer.decomposable is (fused == 0)
    plan = build_plan("toy", network, RTX, TARGET)
    assert fused_attentions(plan) == fused


def test_attention_that_cannot_be_fused_is_refused(tmp_path):
    network = parse("toy", attention(tmp_path, width=384), RTX)
    with pytest.raises(BuildError, match=r"toy: TensorRT-RTX .* rtx4090") as caught:
        build_plan("toy", network, RTX, TARGET)
    assert caught.value.code == "VIDC-TENSORRT-BUILD"
    assert "dedicated kernel" in caught.value.message


def test_parser_error_names_node(tmp_path):
    text = """
    <ir_version: 10, opset_import: ["" : 24]>
    toy (float16[1, 2, 8, 4] cache, float16[1, 2, 2, 4] update, int64[1] at)
     => (float16[1, 2, 8, 4] y) {
      [scatter] y = TensorScatter <mode = "circular"> (cache, update, at)
    }
    """
    with pytest.raises(GraphError, match=r"toy: TensorRT-RTX .*'scatter'") as caught:
        parse("toy", graph(tmp_path, text), RTX)
    assert caught.value.code == "VIDC-TENSORRT-PARSE"
    assert (caught.value.component, caught.value.values) == ("toy", ("y",))


def test_dropped_attention_is_named(tmp_path):
    given = attention(tmp_path)
    other = Graph(given.path, given.signature, given.ring_attention | {"absent"})
    with pytest.raises(BuildError, match="toy: TensorRT-RTX made no attention layer of absent"):
        parse("toy", other, RTX)


@pytest.mark.parametrize(("dtype", "given"), [("float", 10**6), ("float16", 1000)])
def test_a_layer_that_takes_more_workspace_than_it_may_is_refused(tmp_path, dtype, given):
    network = parse("toy", attention(tmp_path, dtype), RTX)
    with pytest.raises(BuildError, match="toy: TensorRT-RTX ") as caught:
        build_plan("toy", network, RTX, TARGET, CompileOptions(given))
    assert caught.value.code == "VIDC-TENSORRT-MEMORY"
    assert "raise tensorrt.workspace_gb" in caught.value.hint


@pytest.mark.parametrize(
    ("product", "options", "limit"),
    [
        ("tensorrt_rtx", CompileOptions(), 24 * 10**9),
        ("tensorrt_rtx", CompileOptions(10**9), 10**9),
        ("tensorrt", CompileOptions(), None),
        ("tensorrt", CompileOptions(10**9), 10**9),
    ],
)
def test_default_workspace_is_gpu_memory(monkeypatch, product, options, limit):
    monkeypatch.setitem(sys.modules, "tensorrt", RTX.module())
    limits = []
    config, log = configuration(), Log(RTX.module())
    config.set_memory_pool_limit = lambda pool, count: limits.append((pool, count))
    network = Network(building(config, lambda *_: b"plan"), None, log, ())
    assert build_plan("toy", network, PRODUCTS[product], TARGET, options) == b"plan"
    workspace = RTX.module().MemoryPoolType.WORKSPACE
    assert limits == ([] if limit is None else [(workspace, limit)])


@pytest.mark.filterwarnings("ignore:Use Deprecated in TensorRT-RTX:DeprecationWarning")
@pytest.mark.parametrize("product", ["tensorrt", "tensorrt_rtx"])
def test_timing_cache_file_by_version_and_target(monkeypatch, tmp_path, product):
    monkeypatch.setitem(sys.modules, "tensorrt", RTX.module())
    monkeypatch.setattr("vidc.compiler.backends.tensorrt.product.installed", lambda _: "11.1.0")
    builder = new_builder(RTX.module(), Log(RTX.module()))
    config = builder.create_builder_config()
    network = Network(building(config, lambda *_: b"plan"), None, Log(RTX.module()), (builder,))
    build_plan("toy", network, PRODUCTS[product], TARGET, CompileOptions(cache_folder=tmp_path))
    found = [file.name for file in tmp_path.iterdir()]
    assert found == (["tensorrt-11.1.0-rtx4090.timings"] if product == "tensorrt" else [])


def configuration():
    """A stand-in that takes every setting."""
    names = ("set_compute_capability", "set_flag", "clear_flag", "set_memory_pool_limit")
    return SimpleNamespace(**{name: lambda *_: True for name in names})


def building(config, build):
    """A stand-in for a builder."""
    return SimpleNamespace(create_builder_config=lambda: config, build_serialized_network=build)


@pytest.mark.parametrize("how", ["raised", "logged"])
def test_out_of_memory_is_reported(how):
    def build_serialized_network(*_):
        if how == "raised":
            raise MemoryError("std::bad_alloc")
        log.logger.log(RTX.module().ILogger.ERROR, "Error Code 2: OutOfMemory (requested 9 bytes)")
        log.logger.log(RTX.module().ILogger.ERROR, "Error Code 10: no implementation was found")

    log = Log(RTX.module())
    builder = building(configuration(), build_serialized_network)
    with pytest.raises(BuildError, match="toy: TensorRT-RTX ran out of memory") as caught:
        build_plan("toy", Network(builder, None, log, ()), RTX, TARGET)
    assert caught.value.code == "VIDC-TENSORRT-MEMORY"
