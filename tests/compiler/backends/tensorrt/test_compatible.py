"""Plans for GPUs of other compute capabilities and for later versions."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from vidc.compiler.backends import CompileOptions
from vidc.compiler.backends.tensorrt.backend import backend
from vidc.compiler.backends.tensorrt.build import build_plan
from vidc.compiler.backends.tensorrt.built_layers import Log
from vidc.compiler.backends.tensorrt.compatible import SINCE, compatible
from vidc.compiler.backends.tensorrt.network import Network
from vidc.compiler.backends.tensorrt.plan import describe_plan
from vidc.compiler.backends.tensorrt.product import PRODUCTS, numbers
from vidc.compiler.build.sources import Sources
from vidc.compiler.build.stages import stages
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.exporters.export import export_component
from vidc.plugins.errors import BuildError, UnavailableError

HARDWARE, VERSION = "tensorrt.hardware_compatible=true", "tensorrt.version_compatible=true"
AMPERE_PLUS = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0", "12.1")
RTX = {
    "fp32": ("8.0", "8.6", "8.9", "12.0", "12.1"),
    "fp16": ("7.5", "8.0", "8.6", "8.9", "12.0", "12.1"),
    "bf16": ("8.0", "8.6", "8.9", "12.0", "12.1"),
    "fp8": ("8.9", "12.0", "12.1"),
}


def settings(target, precision, *assignments, name="tensorrt"):
    return resolve("tiny", gpu=target, backend=name, precision=precision,
                   assignments=assignments, environ={})  # fmt: skip


@pytest.mark.parametrize(
    "target", [t for t in targets().values() if t.is_gpu], ids=lambda t: t.name
)
def test_the_capabilities_that_a_precision_asks_for_are_those_of_the_targets(target):
    for precision in ("fp16", "bf16", "fp8", "int8"):
        has = numbers(target.compute_capability) >= numbers(SINCE.get(precision, "0.0"))
        assert has == (precision in target.precisions)


def test_rtx_multiplies_no_fp32_on_turing(tmp_path):
    pytest.importorskip("tensorrt_rtx")
    chosen = settings("rtx4090", "fp32")
    component = export_component(chosen.model.parts["transformer"], "fp32", "text_kv", tmp_path)
    for wanted in (("7.5",), RTX["fp32"]):
        output = tmp_path / f"for{len(wanted)}"
        output.mkdir()
        options = CompileOptions(capabilities=wanted, note=lambda _: None)
        refuses = pytest.raises(BuildError, match="FP32 GEMM is not supported")
        with refuses if wanted == ("7.5",) else nullcontext():
            backend.compile(component, chosen.target, {}, output, options)


@pytest.mark.parametrize("precision", RTX)
def test_rtx_builds_for_all_gpus_that_have_the_precision(precision):
    found = compatible(settings("rtx4090", precision, HARDWARE))
    assert (found.capabilities, found.version) == (RTX[precision], False)


def test_one_engine_s_precision_is_the_bundle_s_limit():
    mixed = settings("rtx4090", "fp16", HARDWARE, "precision.vae=bf16")
    assert compatible(mixed).capabilities == RTX["bf16"]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_tensorrt_builds_for_ampere_and_later(precision):
    found = compatible(settings("h100", precision, HARDWARE, VERSION))
    assert (found.capabilities, found.version) == (AMPERE_PLUS, True)


@pytest.mark.parametrize(
    ("target", "precision", "name", "asked", "says"),
    [
        ("t4", "fp16", "tensorrt", HARDWARE, "of compute capability 8.0 and above, and t4 has 7.5"),
        ("h100", "fp8", "tensorrt", HARDWARE, "of which those before 8.9 have no fp8"),
        ("rtx4090", "fp16", "tensorrt", VERSION, "TensorRT-RTX load in the version that built"),
        ("rtx4090", "fp16", "torch_tensorrt", HARDWARE, "hardware_compatible: backend torch_ten"),
        ("h100", "fp16", "torch_tensorrt", VERSION, "version_compatible: backend torch_tensorrt"),
    ],
)
def test_what_there_is_not_is_refused_before_anything_is_built(
    target, precision, name, asked, says
):
    chosen = settings(target, precision, asked, name=name)
    with pytest.raises(UnavailableError) as caught:
        # Stages in 8 bits are not made without a calibration.
        compatible(chosen) if precision == "fp8" else compiling(chosen)
    assert (caught.value.code, caught.value.exit_code) == ("VIDC-TENSORRT-COMPATIBLE", 3)
    assert says in caught.value.message
    assert "leave it out" in caught.value.hint


def compiling(chosen):
    made = stages(chosen, Sources({}, seed=1))
    return next(stage for stage in made if stage.name == "compile:denoise")


def test_both_are_in_the_key_of_what_is_compiled():
    plain = compiling(settings("h100", "fp16"))
    asked = compiling(settings("h100", "fp16", HARDWARE, VERSION))
    assert plain.key().config == {"precision": "fp16"}
    assert asked.key().config == {
        "precision": "fp16",
        "capabilities": list(AMPERE_PLUS),
        "version_compatible": True,
    }
    assert compiling(resolve("tiny", gpu="cpu", assignments=[HARDWARE, VERSION], environ={}))


@pytest.mark.parametrize("precision", ["fp16", pytest.param("bf16", marks=pytest.mark.deep)])
def test_a_plan_of_rtx_is_for_all_of_them_with_its_attention_fused(tmp_path, precision):
    pytest.importorskip("tensorrt_rtx")
    chosen = settings("rtx4090", precision)
    component = export_component(chosen.model.parts["transformer"], precision, "denoise", tmp_path)
    made = {}
    for wanted in ((), RTX[precision]):
        output = tmp_path / f"for{len(wanted)}"
        output.mkdir()
        engine = backend.compile(
            component,
            chosen.target,
            {},
            output,
            CompileOptions(capabilities=wanted, note=lambda _: None),
        )
        assert engine.requires.compute_capabilities == wanted
        assert engine.options == {"product": "tensorrt_rtx"}
        made[wanted] = describe_plan(output / engine.files[0])
    one, all_of_them = made.values()
    assert one.architectures == ("sm89",)
    named = tuple(f"sm{each.replace('.', '')}" for each in RTX[precision])
    assert all_of_them.architectures == named
    assert one.fused_attentions == all_of_them.fused_attentions == 4


@pytest.mark.parametrize(
    ("options", "level", "flagged"),
    [
        (CompileOptions(), None, False),
        (CompileOptions(capabilities=AMPERE_PLUS), "AMPERE_PLUS", False),
        (CompileOptions(version_compatible=True), None, True),
    ],
)
def test_tensorrt_is_asked_for_a_level_and_a_flag(monkeypatch, options, level, flagged):
    module = pytest.importorskip("tensorrt_rtx")
    monkeypatch.setitem(sys.modules, "tensorrt", module)
    flags = []
    config = SimpleNamespace(
        set_flag=flags.append, clear_flag=lambda *_: None, hardware_compatibility_level=None
    )
    builder = SimpleNamespace(
        create_builder_config=lambda: config, build_serialized_network=lambda *_: b"plan"
    )
    network = Network(builder, None, Log(module), ())
    build_plan("toy", network, PRODUCTS["tensorrt"], targets()["h100"], options)
    wanted = None if level is None else getattr(module.HardwareCompatibilityLevel, level)
    assert config.hardware_compatibility_level == wanted
    assert (module.BuilderFlag.VERSION_COMPATIBLE in flags) is flagged
    # Its runtime travels in the plan, or the loader would have to find that library.
    assert module.BuilderFlag.EXCLUDE_LEAN_RUNTIME not in flags
