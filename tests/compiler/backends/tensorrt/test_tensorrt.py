import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from vidc.compiler.backends.tensorrt.backend import backend
from vidc.compiler.backends.tensorrt.product import PRODUCTS, product_for
from vidc.compiler.config.recipe import load_recipe
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.compiler.quantize.formats import supported_formats
from vidc.compiler.quantize.linears import linears_of
from vidc.exporters.export import export_component
from vidc.exporters.onnx.native_ring import NATIVE
from vidc.plugins.errors import BuildError, UnavailableError
from vidc.plugins.installation import install_extra
from vidc.plugins.ops.ring import ring_attention


def test_each_gpu_has_its_product():
    found = {name: product_for(target) for name, target in targets().items()}
    names = {name: product and product.name for name, product in found.items()}
    rtx = dict.fromkeys(("rtx4090", "rtx5090"), "tensorrt_rtx")
    datacenter = dict.fromkeys(("a100", "b200", "h100", "h200", "l4", "t4"), "tensorrt")
    assert names == rtx | datacenter | {"cpu": None}


def test_rtx_does_not_support_hopper():
    hopper = replace(targets()["h100"], tensorrt="tensorrt_rtx")
    assert product_for(hopper) is None
    assert backend.precisions(hopper) == frozenset()
    served = "TensorRT-RTX supports GPUs of compute capability 7.5, 8.0, 8.6, 8.9, 12.0, 12.1"
    assert backend.unavailable(hopper) == f"{served}, and h100 has 9.0"
    assert product_for(targets()["h100"]) is PRODUCTS["tensorrt"]


def test_rejects_unsupported_gpu_and_lists_supported_ones(monkeypatch):
    hopper = replace(targets()["h100"], tensorrt="tensorrt_rtx")
    monkeypatch.setattr("vidc.compiler.config.resolve.find_target", lambda *_: hopper)
    for name in ("tensorrt", "torch_tensorrt"):
        with pytest.raises(UnavailableError, match=r"TensorRT-RTX supports .*12\.1, and") as caught:
            resolve("tiny", gpu="h100", backend=name, precision="fp16", environ={})
        assert (caught.value.code, caught.value.exit_code) == ("VIDC-BACKEND-TARGET", 3)
        assert caught.value.hint == "pass --backend aoti"
    assert resolve("tiny", gpu="h100", precision="fp16", environ={}).backend == "aoti"


@pytest.mark.parametrize(
    ("target", "precisions"),
    [
        ("rtx4090", {"fp32", "fp16", "bf16", "fp8", "int8"}),
        ("rtx5090", {"fp32", "fp16", "bf16", "fp8", "int8"}),
        ("h100", {"fp32", "fp16", "bf16", "fp8", "int8"}),
        ("a100", {"fp32", "fp16", "bf16", "int8"}),
        ("t4", {"fp32", "fp16", "int8"}),
        ("cpu", set()),
    ],
)
def test_precisions_by_gpu(target, precisions):
    assert backend.precisions(targets()[target]) == precisions


def test_default_backend_for_gpus_without_aoti():
    assert resolve("tiny", gpu="rtx4090", precision="fp16", environ={}).backend == "tensorrt"
    assert resolve("tiny", gpu="h100", precision="bf16", environ={}).backend == "aoti"


@pytest.mark.parametrize("target", [name for name, t in targets().items() if product_for(t)])
@pytest.mark.parametrize("precision", ["fp8", "int8"])
def test_default_recipe_of_target_is_supported(target, precision):
    if precision not in backend.precisions(targets()[target]):
        with pytest.raises(UnavailableError, match="has no fp8") as caught:
            resolve("tiny", gpu=target, backend="tensorrt", precision=precision, environ={})
        assert caught.value.code == "VIDC-TARGET-PRECISION"
        return
    settings = resolve("tiny", gpu=target, backend="tensorrt", precision=precision, environ={})
    form = backend.quantization(settings.target)
    linears = linears_of(supported_formats(settings.quantization.recipe, settings.model, form))
    assert len(linears) == 10 * settings.model.transformer.layers
    assert {linear.format.weights for linear in linears.values()} == {precision}


@pytest.mark.parametrize("recipe", ["fp8", "int8-attention", "kv-fp8", "kv-int8"])
def test_takes_8_bit_rings(recipe):
    config = resolve("tiny", gpu="cpu", assignments=("model.dim=192",), environ={}).model
    taken = supported_formats(load_recipe(recipe), config, backend.quantization(targets()["l4"]))
    assert {form.keys for form in taken.attention.values()} <= {"fp8", "int8"}


@pytest.mark.parametrize("recipe", ["fp8-dynamic", "int8"])
def test_rejects_unsupported_recipe(recipe):
    config = resolve("tiny", gpu="cpu", environ={}).model
    with pytest.raises(UnavailableError, match="TensorRT networks do not support yet") as caught:
        supported_formats(load_recipe(recipe), config, backend.quantization(targets()["rtx4090"]))
    assert caught.value.code == "VIDC-RECIPE-LOWERING"


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("rtx4090", f"TensorRT-RTX is not installed: {install_extra('rtx')}"),
        (
            "h100",
            "install --extra-index-url https://pypi.nvidia.com tensorrt: its",
        ),
        ("cpu", "it builds for GPUs only"),
    ],
)
def test_a_product_that_is_missing_is_named_with_its_index(monkeypatch, target, says):
    monkeypatch.setattr("vidc.compiler.backends.tensorrt.product.installed", lambda _: None)
    assert says in (backend.unavailable(targets()[target]) or "")


def test_compile_without_product_names_install_command(monkeypatch, tmp_path):
    settings = resolve("tiny", gpu="rtx4090", precision="fp16", environ={})
    component = export_component(settings.model.parts["transformer"], "fp16", "text_kv", tmp_path)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(UnavailableError, match="TensorRT-RTX cannot be imported") as caught:
        backend.compile(component, settings.target, {}, tmp_path)
    assert caught.value.code == "VIDC-ENV-TENSORRT"
    assert "PyPI" in caught.value.hint


def test_a_plugin_operator_is_refused_for_rtx_before_the_parser(monkeypatch, tmp_path):
    """The parser of TensorRT-RTX would end the process."""

    def plugin(query, key_cache, value_cache, valid_length):
        return torch.onnx.ops.symbolic(
            "vidc::ring_attention",
            (query, key_cache, value_cache, valid_length),
            dtype=query.dtype,
            shape=query.shape,
            version=1,
        )

    def parse(*_):
        raise AssertionError("the parser was called")

    parser = SimpleNamespace(parse=parse, parse_from_file=parse)
    product = SimpleNamespace(OnnxParser=lambda *_: parser)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", product)
    monkeypatch.setitem(NATIVE, ring_attention, plugin)
    settings = resolve("tiny", gpu="rtx4090", precision="fp16", environ={})
    component = export_component(settings.model.parts["transformer"], "fp16", "denoise", tmp_path)
    output = tmp_path / "engine"
    output.mkdir()
    with pytest.raises(BuildError) as caught:
        backend.compile(component, settings.target, {}, output)
    assert caught.value.code == "VIDC-EXPORT-LINT"
    assert caught.value.message.startswith("denoise: tensorrt_rtx would not compute denoise")
    assert "custom-operator-plugin" in caught.value.message
    assert list(output.iterdir()) == []
