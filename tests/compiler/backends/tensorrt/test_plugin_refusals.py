"""Graphs whose plugins cannot be called are refused before TensorRT-RTX's parser reads them."""

import subprocess
import sys

import onnx
import pytest
from shared_library import shared_library

from vidc.compiler.backends.native_graph import Graph
from vidc.compiler.backends.tensorrt.network import parse
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.exporters.onnx.lint import lint
from vidc.plugins import loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import BuildError, UnavailableError
from vidc.plugins.signature import Signature

pytest.importorskip("tensorrt_rtx")

RTX = PRODUCTS["tensorrt_rtx"]
REGISTERED = 'plugin_namespace = "vidc", plugin_version = "1"'
GELU = """
<ir_version: 10, opset_import: ["" : 24, "vidc" : 1]>
toy (float16[1, 4, 64] x) => (float16[1, 4, 64] y) {{
  [node] y = vidc.{plugin}<{attributes}>(x)
}}
"""


@pytest.fixture
def graph(tmp_path):
    """Makes a graph that calls one plugin."""

    def graph(attributes='dtype = "float16"', plugin="gelu_quantize"):
        text = GELU.format(plugin=plugin, attributes=f"{attributes}, {REGISTERED}")
        path = tmp_path / "toy.onnx"
        onnx.save(onnx.parser.parse_model(text), path)
        return Graph(path, Signature(()), frozenset(), plugins={"node": plugin})

    return graph


class ParserCalledError(Exception):
    pass


@pytest.fixture
def no_parser(monkeypatch):
    """TensorRT-RTX, whose parser must not be called."""

    def parser(*_):
        raise ParserCalledError

    monkeypatch.setattr(RTX.module(), "OnnxParser", parser)


@pytest.mark.usefixtures("plugins", "no_parser")
def test_only_a_graph_that_fits_its_plugins_reaches_the_parser(graph):
    with pytest.raises(ParserCalledError):
        parse("toy", graph(), RTX)


@pytest.mark.usefixtures("plugins", "no_parser")
def test_refuses_plugin_without_a_creator(graph):
    with pytest.raises(UnavailableError, match="has no plugin gelu_quantize_4bit") as caught:
        parse("toy", graph(plugin="gelu_quantize_4bit"), RTX)
    assert caught.value.code == "VIDC-KERNEL-LIBRARY"


@pytest.mark.usefixtures("no_parser")
def test_refuses_library_of_another_abi(graph, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "files", lambda package: tmp_path)
    source = f"int vidc_plugin_abi(void) {{ return {PLUGIN_ABI + 1}; }}"
    shared_library(source, tmp_path / loading.TENSORRT_LIBRARY)
    with pytest.raises(UnavailableError, match=f"has ABI {PLUGIN_ABI + 1}") as caught:
        parse("toy", graph(), RTX)
    assert caught.value.code == "VIDC-KERNEL-ABI"


@pytest.mark.usefixtures("plugins", "no_parser")
@pytest.mark.parametrize(
    ("attributes", "says"),
    [
        ("dtype = 1", "attribute dtype of type INT, and the plugin takes CHAR"),
        ("dtype = 0.5", "attribute dtype of type FLOAT, and the plugin takes CHAR"),
        ('dtype = ["float16"]', "attribute dtype of type STRINGS, and the plugin takes CHAR"),
        ('type = "float16"', "attribute dtype of type none, and the plugin takes CHAR"),
        ('dtype = "float16", sink = 3', "attribute sink of type INT, and the plugin takes no such"),
    ],
)
def test_refuses_attribute_of_another_type(graph, attributes, says):
    with pytest.raises(BuildError) as caught:
        parse("toy", graph(attributes), RTX)
    assert caught.value.code == "VIDC-TENSORRT-PLUGIN"
    assert "toy: node 'node' calls plugin gelu_quantize with" in caught.value.message
    assert says in caught.value.message


@pytest.mark.usefixtures("plugins")
def test_value_that_the_plugin_refuses_is_told_in_its_words(graph):
    with pytest.raises(BuildError) as caught:
        parse("toy", graph('dtype = "int4"'), RTX)
    assert caught.value.code == "VIDC-TENSORRT-PARSE"
    assert "[VIDC-KERNEL-ARGUMENT] vidc::gelu_quantize: dtype: expect" in caught.value.message


@pytest.mark.parametrize("parser", ["tensorrt", "tensorrt_rtx"])
def test_graph_with_a_plugin_is_refused_where_none_is_called(graph, parser):
    import onnx_ir as ir

    (found,) = lint(ir.load(graph().path), parser)
    assert found.construct.code == "custom-operator-plugin"


def test_refuses_a_parser_that_would_not_find_its_library(plugins, graph):
    """Another package imported TensorRT-RTX first; its parser ends the process."""
    path = graph().path
    code = f"""
import tensorrt_rtx
from pathlib import Path
from vidc.compiler.backends.native_graph import Graph
from vidc.compiler.backends.tensorrt.network import parse
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.plugins import loading
from vidc.plugins.errors import VidcError
from vidc.plugins.signature import Signature
loading.files = lambda package: Path({str(plugins)!r})
plugins = {{"node": "gelu_quantize"}}
graph = Graph(Path({str(path)!r}), Signature(()), frozenset(), plugins=plugins)
try:
    parse("toy", graph, PRODUCTS["tensorrt_rtx"])
except VidcError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[VIDC-ENV-TENSORRT] tensorrt_rtx was imported before vidc: ")
