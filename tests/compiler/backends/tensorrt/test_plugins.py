"""Choice of the plugins that a component calls, by product, stream and setting."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import transformer
from quantized import Quantized

from vidc.compiler.backends import CompileOptions
from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.network import Network
from vidc.compiler.backends.tensorrt.plugins import choose_plugins
from vidc.compiler.backends.tensorrt.product import PRODUCTS
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.targets import targets
from vidc.compiler.quantize.support import TENSORRT as SUPPORT
from vidc.plugins import loading
from vidc.plugins.errors import UnavailableError

TENSORRT, RTX = PRODUCTS["tensorrt"], PRODUCTS["tensorrt_rtx"]
SIZES = ("model.layers=1", "model.dim=128", "model.heads=2", "stream.height=16", "stream.width=32")
ABSENT = UnavailableError("VIDC-KERNEL-LIBRARY", "it is not installed", "build it")
both = pytest.mark.parametrize("product", [TENSORRT, RTX])


def chosen(product, window, name="denoise", precision="fp16", **options):
    model = transformer.model(*SIZES, f"stream.window={window}")
    made = model.component(name, precision)
    return choose_plugins(name, made.signature, made.aligned, product, CompileOptions(**options))


@pytest.fixture(scope="module")
def narrow():
    """A component whose ring is in INT8, and no block of it straddles the wrap."""
    model = transformer.model(*SIZES, "stream.window=9")
    return Quantized(model, load_recipe("kv-int8"), SUPPORT).component("denoise")


def chosen_for(made, **options):
    return choose_plugins("denoise", made.signature, made.aligned, RTX, CompileOptions(**options))


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(loading, "tensorrt_library_error", lambda: None)


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setattr(loading, "tensorrt_library_error", lambda: ABSENT)


@both
@pytest.mark.usefixtures("installed")
def test_plugins_run_a_ring_that_a_block_straddles(product):
    use = chosen(product, window=8)
    assert (use.rings, use.activations, use.notes) == (True, False, ())


@both
@pytest.mark.usefixtures("installed")
def test_tensorrts_own_layers_run_a_ring_that_no_block_straddles(product):
    assert not chosen(product, window=9)


@pytest.mark.usefixtures("installed")
def test_plugins_run_every_8_bit_ring(narrow):
    assert narrow.aligned
    assert chosen_for(narrow).rings


@pytest.mark.usefixtures("installed")
def test_setting_all_calls_every_plugin():
    use = chosen(RTX, window=9, plugins="all")
    assert (use.rings, use.activations) == (True, True)
    use = chosen(RTX, window=9, name="text_kv", plugins="all")
    assert (use.rings, use.activations) == (False, True)


@pytest.mark.usefixtures("installed")
def test_setting_none_copies_a_ring_and_says_so():
    use = chosen(RTX, window=8, plugins="none")
    assert not use
    (note,) = use.notes
    assert note.startswith("the ring is copied in every pass: ")
    assert "tensorrt.plugins is none" in note


@pytest.mark.usefixtures("installed")
def test_plan_for_later_versions_calls_no_plugins():
    use = chosen(TENSORRT, window=8, version_compatible=True)
    assert not use
    assert "a plan for later versions of TensorRT cannot call" in use.notes[0]


@both
@pytest.mark.usefixtures("installed")
def test_component_without_a_ring_calls_none(product):
    use = chosen(product, window=8, name="text_kv")
    assert (bool(use), use.notes) == (False, ())


@pytest.mark.usefixtures("installed")
def test_ring_without_a_kernel_is_copied_and_the_build_says_why():
    use = chosen(RTX, window=8, precision="fp32")
    assert not use
    assert "expected bfloat16 or float16" in use.notes[0]


@pytest.mark.usefixtures("installed")
def test_setting_all_says_which_ring_it_leaves_to_tensorrts_layers():
    use = chosen(RTX, window=9, precision="fp32", plugins="all")
    assert (use.rings, use.activations) == (False, True)
    (note,) = use.notes
    assert note.startswith("the ring runs in TensorRT's own layers: ")
    assert "expected bfloat16 or float16" in note


@pytest.mark.usefixtures("absent")
def test_without_the_library_a_ring_is_copied_and_the_build_says_how_to_get_it():
    use = chosen(RTX, window=8)
    assert not use
    assert "it is not installed; build it" in use.notes[0]


@pytest.mark.usefixtures("absent")
def test_without_the_library_what_needs_it_is_refused(narrow):
    with pytest.raises(UnavailableError) as caught:
        chosen_for(narrow)
    assert caught.value.code == "VIDC-KERNEL-LIBRARY"
    with pytest.raises(UnavailableError, match="VIDC-KERNEL-LIBRARY"):
        chosen(RTX, window=9, plugins="all")


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("options", [{"plugins": "none"}, {"version_compatible": True}])
def test_8_bit_ring_without_plugins_is_refused(narrow, options):
    with pytest.raises(UnavailableError, match="denoise needs plugins") as caught:
        chosen_for(narrow, **options)
    assert caught.value.code == "VIDC-TENSORRT-PLUGIN"


@pytest.mark.parametrize("plugins", [{}, {"write": "qk_norm_rope_ring_write"}])
def test_plugins_may_write_where_the_ring_lies(monkeypatch, plugins):
    module, builder = MagicMock(), MagicMock()
    monkeypatch.setattr(type(TENSORRT), "module", lambda self: module)
    builder.build_serialized_network.return_value = b"plan"
    network = Network(builder, MagicMock(), SimpleNamespace(errors=[]), (), plugins)
    assert build_plan("toy", network, TENSORRT, targets()["h100"]) == b"plan"
    asked = builder.create_builder_config().set_preview_feature.call_args_list
    feature = module.PreviewFeature.ALIASED_PLUGIN_IO_10_03
    assert [call.args for call in asked] == [(feature, True)] * bool(plugins)
