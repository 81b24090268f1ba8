"""Plans bound to a stream's buffers, by a stand-in for the product: no GPU here runs one."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import fake_tensorrt
import pytest
import torch
import transformer
from quantized import Quantized
from safetensors.torch import save_file
from shared_library import shared_library

from vidc.compiler.backends.native_graph import write_graph
from vidc.compiler.config.program import program_spec
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.quantize.support import TENSORRT
from vidc.compiler.validate.golden import make_inputs
from vidc.compiler.validate.reference import eager_engines, player
from vidc.compiler.validate.scenario import Scenario
from vidc.exporters.onnx.constructs import PADDED_KEYS, UNFUSED
from vidc.plugins import loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.installation import install_packages
from vidc.plugins.signature import Signature
from vidc.runtime import manifest
from vidc.runtime.engines.tensorrt import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
VERSION = "9.8.7"
HANDLED = (PADDED_KEYS, *UNFUSED)


@pytest.fixture(scope="module")
def bundle(config, exported, tmp_path_factory):
    """The folder of the plans of a stream's components, and their entries."""
    folder, entries = tmp_path_factory.mktemp("bundle"), {}
    for name in config.components:
        if name not in program_spec(config).components:
            continue
        graph = write_graph(exported(name), "tensorrt_rtx", folder, HANDLED)
        entries[name] = manifest.Engine(
            backend="tensorrt",
            loader="tensorrt",
            version=VERSION,
            precision="fp32",
            files=(graph.path.name,),
            signature=graph.signature,
            options={"product": "tensorrt_rtx"},
            requires=manifest.PORTABLE,
        )
    return folder, entries


@pytest.fixture(autouse=True)
def product(monkeypatch):
    fake = fake_tensorrt.module("tensorrt_rtx", VERSION)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", fake)
    return fake


def test_stream_matches_pytorch(config, weights, bundle):
    folder, entries = bundle
    shared = Weights(weights, CPU)
    engines = {name: load(Files(folder), entry, shared, CPU) for name, entry in entries.items()}
    eager = eager_engines(config, weights, dict.fromkeys(weights, "fp32"), CPU)
    stream = program_spec(config)
    scenario = Scenario(blocks=6, switch_after=4, rollout=True)
    inputs = make_inputs(scenario, stream)
    with torch.no_grad():
        found = player(config, engines, CPU).rollout(scenario, inputs)
        expected = player(config, eager, CPU).rollout(scenario, inputs)
    for got, wanted in zip(found.latents, expected.latents, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    for block, frames in expected.frames.items():
        assert (found.frames[block].int() - frames.int()).abs().max() <= 1


def test_the_ring_stays_in_place_and_the_decoders_caches_do_not(bundle):
    _, entries = bundle
    in_place = {s.name: s.in_place for s in entries["denoise"].signature.states}
    assert all(value == name.startswith("ring.") for name, value in in_place.items())
    assert {s.axes for s in entries["denoise"].signature.states} == {(0, 2, 1, 3), None}
    assert not any(s.in_place for s in entries["taehv_decode"].signature.states)
    assert all(s.in_place for s in entries["text_kv"].signature.states)


@pytest.mark.parametrize("recipe", ["fp8-linear", "int8-static", "int8-weight-only"])
def test_quantized_plan_matches_the_modules(tmp_path, recipe):
    """Its weights in 8 bits and their scales come from the bundle, as all weights do."""
    model = transformer.model("model.layers=1", "stream.height=16", "stream.width=32",
                              "stream.window=9")  # fmt: skip
    made = Quantized(model, load_recipe(recipe), TENSORRT)
    high, component = model.component("denoise", "fp32"), made.component("denoise")
    plain = blocks_of(high.module, high.signature)
    expected = blocks_of(component.module, component.signature)
    exported = made.exported("denoise", "fp32", tmp_path, onnx=False)

    (tmp_path / "plan").mkdir()
    graph = write_graph(exported, "tensorrt_rtx", tmp_path / "plan", HANDLED)
    stored = {name.removeprefix("transformer."): value for name, value in made.weights.items()}
    save_file(stored, tmp_path / "transformer.safetensors")
    entry = manifest.Engine(
        "tensorrt", "tensorrt", VERSION, recipe.partition("-")[0], (graph.path.name,),
        graph.signature, {"product": "tensorrt_rtx"}, manifest.PORTABLE,
    )  # fmt: skip
    weights = Weights({"transformer": tmp_path / "transformer.safetensors"}, CPU)
    engine = load(Files(tmp_path / "plan"), entry, weights, CPU)
    states, buffers = States([engine.signature], CPU), Buffers(engine.signature, CPU)
    for name, value in transformer.filled(component.signature).items():
        axes = engine.signature[name].axes
        states[name].copy_(value if axes is None else value.permute(axes))
    found = []
    for given in transformer.blocks(component.signature, 216):
        buffers.set(given)
        engine.run(buffers, states)
        found.append(buffers["flow"].clone())
    rounding = relative(expected, plain)
    assert 5e-3 < rounding < 0.5
    # Sums in another order round to a neighbor here and there.
    assert relative(found, expected) < 0.1 * rounding


def blocks_of(module, signature):
    """The flow of some blocks."""
    states, found = transformer.filled(signature), []
    with torch.no_grad():
        for given in transformer.blocks(signature, 216):
            values = given | states
            (flow,) = module(*(values[spec.name] for spec in signature.arguments))
            found.append(flow)
    return found


def relative(found, expected):
    difference = sum(float((a - b).square().sum()) for a, b in zip(found, expected, strict=True))
    return (difference / sum(float(value.square().sum()) for value in expected)) ** 0.5


def refused(bundle, weights, error, code, **changes):
    folder, entries = bundle
    with pytest.raises(error) as caught:
        load(Files(folder), replace(entries["text_kv"], **changes), Weights(weights, CPU), CPU)
    assert caught.value.code == code
    return caught.value


def test_names_a_missing_product(bundle, weights, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    error = refused(bundle, weights, UnavailableError, "VIDC-ENV-TENSORRT")
    assert f"TensorRT-RTX {VERSION}" in error.message
    assert error.hint == install_packages(f"tensorrt-rtx=={VERSION}")


def test_another_version_is_refused(bundle, weights):
    error = refused(bundle, weights, UnavailableError, "VIDC-ENGINE-VERSION", version="1.2.3")
    assert "1.2.3" in error.message
    assert VERSION in error.message


@pytest.mark.parametrize(
    ("built", "here"),
    [
        ("10.13.3.9", "10.13.3.9"),
        ("10.13.3.9.post1", "10.13.3.9"),
        ("10.13.3.9", "10.13.3.9.post2"),
        ("10.13.3.9.post1", "10.13.3"),
        ("1.7.1.116", "1.7.1.116+cu13"),
    ],
)
def test_the_same_version_in_another_wheel_is_taken(bundle, weights, product, built, here):
    folder, entries = bundle
    product.__version__ = here
    entry = replace(entries["text_kv"], version=built)
    assert load(Files(folder), entry, Weights(weights, CPU), CPU).signature == entry.signature


@pytest.mark.parametrize(
    ("built", "here"),
    [
        ("10.13.3.9", "10.15.1.29"),
        ("10.1.3.9", "10.13.3.9"),
        ("10.13.3.9", "10.13.3.10"),
        ("10.13.3.9", "10.13.2.9"),
        ("10.13", "10.13.3"),
        ("10.13.3.9", "11.13.3.9"),
        ("10.13.0", "10.13.0rc1"),
        ("10.13.0.dev1", "10.13.0"),
        ("10.13.3.9.post1", "10.13.4.post1"),
        ("", "10.13.3"),
        ("10.13.3.9", "unknown"),
    ],
)
def test_refuses_a_version_with_a_similar_prefix(bundle, weights, product, built, here):
    product.__version__ = here
    error = refused(bundle, weights, UnavailableError, "VIDC-ENGINE-VERSION", version=built)
    assert f"{here} is installed" in error.message


@pytest.fixture
def enterprise(monkeypatch):
    fake = fake_tensorrt.module("tensorrt", VERSION)
    monkeypatch.setitem(sys.modules, "tensorrt", fake)
    return fake


COMPATIBLE = {"product": "tensorrt", "version_compatible": True}


@pytest.mark.parametrize(
    ("built", "here"),
    [("10.13.3.9", "10.13.3.9"), ("10.13.3.9", "10.15.1.29"), ("10.13.3.9", "11.1.0")],
)
def test_a_compatible_plan_loads_in_later_versions(bundle, weights, enterprise, built, here):
    folder, entries = bundle
    enterprise.__version__ = here
    entry = replace(entries["text_kv"], version=built, options=COMPATIBLE)
    assert load(Files(folder), entry, Weights(weights, CPU), CPU).signature == entry.signature
    # It holds a runtime, which has to be let run.
    assert fake_tensorrt.Runtime.last.engine_host_code_allowed


@pytest.mark.parametrize(
    ("built", "here"),
    [
        ("10.15.1.29", "10.13.3.9"),
        ("11.1.0", "10.15.1.29"),
        ("10.13.3.9", "12.0.0"),
        ("10.13.3.9", "unknown"),
    ],
)
def test_a_compatible_plan_does_not_load_in_any_version(bundle, weights, enterprise, built, here):
    enterprise.__version__ = here
    error = refused(
        bundle, weights, UnavailableError, "VIDC-ENGINE-VERSION", version=built, options=COMPATIBLE
    )
    assert "in no older version" in error.message


def test_incompatible_plan_may_not_run_its_own_runtime(bundle, weights, enterprise):
    folder, entries = bundle
    entry = replace(entries["text_kv"], options={"product": "tensorrt"})
    load(Files(folder), entry, Weights(weights, CPU), CPU)
    assert not fake_tensorrt.Runtime.last.engine_host_code_allowed


def test_rtx_has_no_plans_for_later_versions(bundle, weights):
    options = {"product": "tensorrt_rtx", "version_compatible": True}
    refused(bundle, weights, GateError, "VIDC-BUNDLE-FIELD", options=options)


def test_a_plan_that_does_not_load_is_refused(bundle, weights):
    folder, _ = bundle
    (folder / "damaged.plan").write_bytes(b"nothing")
    refused(bundle, weights, UnavailableError, "VIDC-ENGINE-LOAD", files=("damaged.plan",))


@pytest.mark.parametrize("product", ["polygraphy", ""])
def test_an_unknown_product_is_refused(bundle, weights, product):
    options = {"product": product}
    refused(bundle, weights, GateError, "VIDC-BUNDLE-FIELD", options=options)


def test_a_plan_of_other_tensors_is_refused(bundle, weights):
    _, entries = bundle
    first, *rest = entries["text_kv"].signature.tensors
    other = Signature((replace(first, shape=(1, 2, 3)), *rest))
    refused(bundle, weights, GateError, "VIDC-ENGINE-SIGNATURE", signature=other)
    without = Signature(tuple(rest))
    error = refused(bundle, weights, GateError, "VIDC-ENGINE-SIGNATURE", signature=without)
    assert "text_embeds" in error.message


def test_a_weight_that_the_bundle_lacks_is_refused(bundle, weights):
    refused(bundle, {"taehv": weights["taehv"]}, GateError, "VIDC-ENGINE-SIGNATURE")


WITH_PLUGINS = {"product": "tensorrt_rtx", "plugins": ["ring_attention_16bit"]}


def test_a_plan_that_calls_plugins_is_loaded_after_their_library(
    bundle, weights, product, monkeypatch, tmp_path
):
    shared_library(
        f"int vidc_plugin_abi(void) {{ return {PLUGIN_ABI}; }}", tmp_path / loading.TENSORRT_LIBRARY
    )
    monkeypatch.setattr(loading, "files", lambda package: tmp_path)
    events = []
    registry = SimpleNamespace(load_library=events.append, get_creator=lambda *of: of)
    product.get_plugin_registry = lambda: registry
    runtime = product.Runtime
    product.Runtime = lambda logger: events.append("runtime") or runtime(logger)
    folder, entries = bundle
    entry = replace(entries["text_kv"], options=WITH_PLUGINS)
    load(Files(folder), entry, Weights(weights, CPU), CPU)
    assert events == [str(tmp_path / loading.TENSORRT_LIBRARY), "runtime"]


def test_refuses_a_plan_without_its_plugin_library(bundle, weights, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "files", lambda package: tmp_path)
    error = refused(bundle, weights, UnavailableError, "VIDC-KERNEL-LIBRARY", options=WITH_PLUGINS)
    assert loading.TENSORRT_LIBRARY in error.message
