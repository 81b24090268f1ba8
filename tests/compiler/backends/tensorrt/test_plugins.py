"""When a ring is in plugins, and what TensorRT is told then, by a stand-in: it is not here."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import transformer

from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.network import Network, parse
from vidc.compiler.backends.tensorrt.plugins import plugin_ring
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.config.targets import targets
from vidc.plugins import loading
from vidc.plugins.errors import UnavailableError

TENSORRT, RTX = PRODUCTS["tensorrt"], PRODUCTS["tensorrt_rtx"]
SIZES = ("model.layers=1", "model.dim=128", "model.heads=2", "stream.height=16", "stream.width=32")


def component(window, name="denoise", precision="fp16"):
    return transformer.model(*SIZES, f"stream.window={window}").component(name, precision)


def decided(product, window, name="denoise", precision="fp16"):
    made = component(window, name, precision)
    return plugin_ring(made.signature, made.aligned, product)


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(loading, "tensorrt_library_error", lambda: None)


@pytest.mark.usefixtures("installed")
def test_a_ring_that_straddles_its_wrap_is_in_plugins():
    assert decided(TENSORRT, window=8) == (True, ())


@pytest.mark.usefixtures("installed")
def test_one_that_does_not_has_tensorrts_own_layers():
    assert decided(TENSORRT, window=9) == (False, ())


@pytest.mark.usefixtures("installed")
def test_a_plan_for_later_versions_calls_none():
    made = component(8)
    plugins, (note,) = plugin_ring(made.signature, made.aligned, TENSORRT, version_compatible=True)
    assert not plugins
    assert "for later versions of TensorRT calls no plugins" in note


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("product", [TENSORRT, RTX])
def test_what_has_no_ring_is_asked_nothing(product):
    assert decided(product, window=8, name="text_kv") == (False, ())


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("product", "precision", "reason"),
    [
        (RTX, "fp16", "TensorRT-RTX takes no plugins"),
        (TENSORRT, "fp32", "expected bfloat16 or float16"),
    ],
)
def test_where_it_is_copied_the_build_says_why(product, precision, reason):
    plugins, (note,) = decided(product, window=8, precision=precision)
    assert not plugins
    assert note.startswith("the ring is copied in every pass: ")
    assert reason in note


def test_without_the_library_the_build_says_how_to_get_it(monkeypatch):
    absent = UnavailableError("VIDC-KERNEL-LIBRARY", "it is not installed", "build it")
    monkeypatch.setattr(loading, "tensorrt_library_error", lambda: absent)
    plugins, (note,) = decided(TENSORRT, window=8)
    assert not plugins
    assert "it is not installed; build it" in note


class StoppedError(Exception):
    pass


@pytest.mark.usefixtures("installed")
def test_tensorrt_has_the_plugins_before_its_parser_sees_the_graph(monkeypatch, tmp_path):
    module = MagicMock()
    module.OnnxParser.side_effect = StoppedError
    monkeypatch.setattr(type(TENSORRT), "module", lambda self: module)
    graph = SimpleNamespace(path=tmp_path / "none.onnx", ring_attention=frozenset(), linears=())
    for plugins in (False, True):
        with pytest.raises(StoppedError):
            parse("toy", graph, TENSORRT, plugins)
        loaded = module.get_plugin_registry().load_library.call_args_list
        assert [str(call.args[0]).endswith("libvidc_plugins.so") for call in loaded] == [
            True
        ] * plugins


@pytest.mark.parametrize("plugins", [False, True])
def test_plugins_may_write_where_the_ring_lies(monkeypatch, plugins):
    module, builder = MagicMock(), MagicMock()
    monkeypatch.setattr(type(TENSORRT), "module", lambda self: module)
    builder.build_serialized_network.return_value = b"plan"
    network = Network(builder, MagicMock(), MagicMock(errors=[]), (), plugins)
    assert build_plan("toy", network, TENSORRT, targets()["h100"]) == b"plan"
    asked = builder.create_builder_config().set_preview_feature.call_args_list
    feature = module.PreviewFeature.ALIASED_PLUGIN_IO_10_03
    assert [call.args for call in asked] == [(feature, True)] * plugins
