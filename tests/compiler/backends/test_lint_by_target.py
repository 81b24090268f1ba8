"""Each target's graphs are held to what the parser that reads them takes for something else."""

import sys
from types import SimpleNamespace

import onnx_ir as ir
import pytest

from vidc.compiler import backends
from vidc.compiler.backends import graph_values
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.exporters.export import export_component
from vidc.exporters.onnx.lint import unhandled

TEXT = """<ir_version: 10, opset_import: ["" : 25, "vidc" : 1]>
graph ({dtype}[1, 2, 4, 8] q, {dtype}[1, 2, 6, 8] k, {dtype}[1, 2, 6, 8] v, bool[1, 6] mask,
       int64[1] length) => ({dtype}[1, 2, 4, 8] y) {{ {body} }}"""
GRAPHS = {
    "padded keys": ("float16", "y = Attention(q, k, v, , , , length)"),
    "window": ("float16", "y = Attention<left_window_size = 2>(q, k, v)"),
    "causal rectangle": ("float16", "y = Attention<is_causal = 1>(q, k, v)"),
    "float32": ("float", "y = Attention(q, k, v)"),
    "bfloat16": ("bfloat16", "y = Attention(q, k, v)"),
    "mask for all queries": ("float16", "y = Attention(q, k, v, mask)"),
    "plugin": ("float16", "y = vidc.ring_attention(q, k, v)"),
}
TENSORRT = {"window", "causal rectangle", "plugin"}
"""Padded keys and float32 are said to the parsed layer; this component calls no plugin."""
ONNXRUNTIME = {"window", "mask for all queries", "plugin"}
REFUSED = {
    **{("tensorrt", name): TENSORRT for name, target in targets().items() if target.is_gpu},
    **{("onnxruntime", name): ONNXRUNTIME for name, target in targets().items() if target.is_gpu},
    ("onnxruntime", "cpu"): ONNXRUNTIME | {"bfloat16"},
}  # fmt: skip


class Linted(Exception):  # noqa: N818  Nothing is wrong
    """Instead of what follows."""


@pytest.fixture(scope="module")
def component(tmp_path_factory):
    sizes = resolve("tiny", gpu="cpu", environ={}).model
    folder = tmp_path_factory.mktemp("text_kv")
    return export_component(sizes.parts["transformer"], "fp32", "text_kv", folder)


def test_every_target_of_the_backends_that_read_graphs_is_here():
    reading = ("tensorrt", "onnxruntime")
    assert set(REFUSED) == {
        (name, target.name)
        for name in reading
        for target in targets().values()
        if backends.backend(name).precisions(target)
    }


@pytest.mark.parametrize(("name", "target"), REFUSED)
def test_lint_uses_parser_of_target(monkeypatch, tmp_path, component, name, target):
    found = set()

    def linting(model, parser, handled=()):
        for what, (dtype, body) in GRAPHS.items():
            offending = ir.from_onnx_text(TEXT.format(dtype=dtype, body=body))
            if unhandled(offending, parser, handled):
                found.add(what)
        raise Linted

    monkeypatch.setattr(graph_values, "unhandled", linting)
    for product in ("tensorrt", "tensorrt_rtx"):
        monkeypatch.setitem(sys.modules, product, SimpleNamespace())
    with pytest.raises(Linted):
        backends.backend(name).compile(component, targets()[target], {}, tmp_path)
    assert found == REFUSED[name, target]
