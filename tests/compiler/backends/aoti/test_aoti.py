import os
import re
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformer
from safetensors.torch import save_file
from torch import Tensor, nn
from torch._inductor import config
from torch.export import ExportedProgram

from vidc.compiler.backends import CompiledEngine, CompileOptions
from vidc.compiler.backends.aoti.backend import backend
from vidc.compiler.backends.aoti.convolution_choices import Choice, Decided
from vidc.compiler.backends.aoti.convolution_forms import Form
from vidc.compiler.backends.aoti.inductor import OPTIONS
from vidc.compiler.config.targets import targets
from vidc.compiler.inspect.package import convolutions_of
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.component import Component
from vidc.exporters.export import export_component
from vidc.exporters.program import export_program, save_program
from vidc.plugins import engine_operators, loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError
from vidc.plugins.signature import Access, Role, Signature, TensorSpec
from vidc.runtime import manifest
from vidc.runtime.compatibility import cpu_features
from vidc.runtime.engines.aoti import load
from vidc.runtime.files import Files
from vidc.runtime.states import Buffers, States
from vidc.runtime.weights import Weights

CPU = torch.device("cpu")
CPU_TARGET = targets()["cpu"]


class Toy(nn.Module):
    """Small weights, two of one shape, constants that are no weights, and a state."""

    def __init__(self) -> None:
        super().__init__()
        self.toy = nn.ParameterDict(
            {"scale": torch.empty(3), "shift": torch.empty(3), "gain": torch.empty(1)}
        )

    def forward(self, x: Tensor, last: Tensor) -> tuple[Tensor]:
        offset = torch.tensor([0.25, 0.5, 0.75], device="cpu")
        table = torch.tensor([float(i) for i in range(20)], device="cpu")
        y = (x * self.toy["scale"] + self.toy["shift"]) * self.toy["gain"]
        result = (y + offset) * table.sum() + last
        last.copy_(y)
        return (result,)


SIGNATURE = Signature(
    (
        TensorSpec("x", (5, 3), "float32", Role.INPUT),
        TensorSpec("last", (5, 3), "float32", Role.STATE, Access.READ_WRITE),
        TensorSpec("y", (5, 3), "float32", Role.OUTPUT),
    )
)
WEIGHTS = {
    "scale": torch.tensor([2.0, 3.0, 5.0]),
    "shift": torch.tensor([7.0, 11.0, 13.0]),
    "gain": torch.tensor([0.5]),
}


def export(folder: Path) -> ExportedComponent:
    exported = ExportedComponent("toy", folder, SIGNATURE)
    save_program(export_program(Component("toy", Toy(), SIGNATURE)), exported.program)
    return exported


@pytest.fixture(scope="module", autouse=True)
def own_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A folder of inductor's that another process has, or left, changes a path in the engine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tempfile.tempdir", str(tmp_path_factory.mktemp("temporary")))
        yield


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[CompiledEngine, Path]:
    output = tmp_path_factory.mktemp("toy")
    exported = export(tmp_path_factory.mktemp("export"))
    return backend.compile(exported, CPU_TARGET, {}, output), output


def test_small_weights_and_constants_have_their_values(
    compiled: tuple[CompiledEngine, Path], tmp_path: Path
) -> None:
    engine, output = compiled
    save_file(WEIGHTS, tmp_path / "toy.safetensors")
    entry = manifest.Engine(
        "aoti", engine.loader, engine.version, "fp32", engine.files, engine.signature,
        dict(engine.options), engine.requires,
    )  # fmt: skip
    loaded = load(Files(output), entry, Weights({"toy": tmp_path / "toy.safetensors"}, CPU), CPU)
    module = Toy()
    module.toy.load_state_dict(WEIGHTS)
    states, buffers = States([loaded.signature], CPU), Buffers(loaded.signature, CPU)
    expected_state = torch.zeros(5, 3)
    for block in range(3):
        x = torch.full((5, 3), 1.0 + block)
        with torch.no_grad():
            (expected,) = module(x, expected_state)
        buffers.set({"x": x})
        loaded.run(buffers, states)
        torch.testing.assert_close(buffers["y"], expected)
        torch.testing.assert_close(states["last"], expected_state)


def test_engine_lists_loader_options(compiled: tuple[CompiledEngine, Path]) -> None:
    engine, output = compiled
    assert engine.files == ("engines/aoti/toy.pt2", "engines/aoti/toy.safetensors")
    assert all((output / file).is_file() for file in engine.files)
    assert engine.signature["last"].in_place
    assert engine.requires.torch == torch.__version__
    assert set(engine.requires.cpu_features) <= cpu_features()
    assert engine.options == {"channels_last": [], "packed": {}, "products": {}}
    assert engine.requires.operators == ()
    assert engine.notes == ()


def test_a_package_holds_neither_weights_nor_pickles(
    compiled: tuple[CompiledEngine, Path],
) -> None:
    engine, output = compiled
    with zipfile.ZipFile(output / engine.files[0]) as archive:
        names = archive.namelist()
    assert any(name.endswith(".so") for name in names)
    assert not [n for n in names if "weights" in n or "sample_inputs" in n or n.endswith(".pt")]


def test_compile_is_silent_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs the whole path but for the compiler's part, which is made to talk and to fail."""

    def fail(*args: object, **kwargs: object) -> None:
        print("chatter")
        Path(os.environ["TORCHINDUCTOR_CACHE_DIR"], "object.o").touch()
        raise RuntimeError("the compiler failed")

    temporary = tmp_path / "tmp"
    temporary.mkdir()
    exported = export(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", fail)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "before")
    with pytest.raises(RuntimeError, match="the compiler failed"):
        backend.compile(exported, CPU_TARGET, {}, tmp_path / "output")
    assert capfd.readouterr().out == ""
    assert not list(temporary.iterdir())
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == "before"


def test_equal_programs_give_equal_engines(
    compiled: tuple[CompiledEngine, Path], tmp_path: Path
) -> None:
    engine, output = compiled
    exported = export(tmp_path)
    again = tmp_path / "again"
    assert backend.compile(exported, CPU_TARGET, {}, again) == engine
    for file in engine.files:
        assert (again / file).read_bytes() == (output / file).read_bytes()


def test_rejects_machine_without_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in (backend.unavailable(CPU_TARGET) or "")
    with pytest.raises(UnavailableError, match="no-such-compiler") as caught:
        backend.compile(ExportedComponent("toy", tmp_path, SIGNATURE), CPU_TARGET, {}, tmp_path)
    assert caught.value.code == "VIDC-ENV-AOTI"
    assert caught.value.hint.startswith("install g++")


def test_accepts_compiler_from_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(UnavailableError, match="does not compile") as caught:
        backend.compile(ExportedComponent("toy", tmp_path, SIGNATURE), CPU_TARGET, {}, tmp_path)
    assert "install" not in caught.value.hint


CPU_WITH = {"avx2": True, "bmi2": True, "avx512_f": False, "architecture": "x86_64"}


@pytest.mark.parametrize(
    ("machine", "may_choose", "used"),
    [
        ("x86_64", True, ("avx2",)),
        ("x86_64", False, ("avx2", "bmi2")),
        ("aarch64", True, ("avx2", "bmi2")),
    ],
)
def test_native_code_requires_all_cpu_features(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    may_choose: bool,
    used: tuple[str, ...],
) -> None:
    """Torch before 2.13 has no option of inductor that keeps it from compiling natively."""
    given = {}

    def compile_nothing(*args: object, package_path: str, inductor_configs: dict) -> None:
        given.update(inductor_configs)
        with zipfile.ZipFile(package_path, "w") as archive:
            archive.writestr("toy/archive_format", "pt2")

    exported = export(tmp_path)
    if may_choose and not hasattr(config.cpp, "march"):
        pytest.skip(f"torch {torch.__version__} has no cpp.march")
    if not may_choose:
        monkeypatch.delitem(config._config, "cpp.march", raising=False)
    monkeypatch.setattr("torch._inductor.aoti_compile_and_package", compile_nothing)
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: CPU_WITH)
    engine = backend.compile(exported, CPU_TARGET, {}, tmp_path / "output")
    assert engine.requires.cpu_features == used
    assert ("cpp.march" in given) is may_choose


def test_inductor_has_our_options() -> None:
    """They are private to torch: an option that went would go unnoticed until an engine is bad."""
    for option in OPTIONS:
        assert option in config.get_config_copy(), f"torch {torch.__version__} lost {option}"


def test_precisions_on_cpu() -> None:
    assert backend.unavailable(CPU_TARGET) is None
    assert backend.precisions(CPU_TARGET) == {"fp32", "bf16", "fp16", "fp8", "int8"}
    assert set(backend.tools(CPU_TARGET)) == {"torch", "c++", "cpu"}
    assert backend.kernels(CPU_TARGET) == ()


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_precisions_on_gpu(gpu: str) -> None:
    target = targets()[gpu]
    assert backend.precisions(target) == {"bf16", "fp16", "fp8", "int8"}
    assert set(backend.tools(target)) == {"torch", "c++", "cuda", "libvidc_torch.so"}
    assert backend.kernels(target) == ("flash_attention",)


LIBRARY_FAULT = UnavailableError("VIDC-KERNEL-LIBRARY", "no library is installed", "install it")


@pytest.mark.parametrize(("fault", "said"), [(None, f"ABI {PLUGIN_ABI}"), (LIBRARY_FAULT, "none")])
def test_gpu_tools_include_kernel_library(
    monkeypatch: pytest.MonkeyPatch, fault: UnavailableError | None, said: str
) -> None:
    monkeypatch.setattr(loading, "torch_library_error", lambda: fault)
    assert backend.tools(targets()["h200"])["libvidc_torch.so"] == said


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[ExportedProgram]:
    """Programs that were compiled for a GPU, up to where one is needed."""
    programs = []

    def compile_nothing(program: ExportedProgram, package: Path, options: object) -> None:
        programs.append(program)
        with zipfile.ZipFile(package, "w") as archive:
            archive.writestr("denoise/archive_format", "pt2")

    monkeypatch.setattr("vidc.compiler.backends.aoti.backend.compile_package", compile_nothing)
    monkeypatch.setattr(
        "vidc.compiler.backends.aoti.cuda.move_to_device_pass", lambda program, _: program
    )
    return programs


@pytest.fixture
def compile_for_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: list[ExportedProgram]
) -> Callable[..., Any]:
    """Compiles ``denoise`` for an H200; the engine and the program it came to."""

    def compile_for_gpu(
        fault: UnavailableError | None, *assignments: str
    ) -> tuple[CompiledEngine, ExportedProgram]:
        monkeypatch.setattr(engine_operators, "kernel_error", lambda *_: fault)
        config = transformer.model(*assignments).config
        exported = export_component(config.parts["transformer"], "bf16", "denoise", tmp_path)
        output = tmp_path / "output"
        return backend.compile(exported, targets()["h200"], {}, output), programs[-1]

    return compile_for_gpu


def operators_of(program: ExportedProgram) -> set[str]:
    text = program.graph_module.print_readable(print_output=False)
    return set(re.findall(r"vidc\.(\w+)\.default", text))


def test_engine_calls_fused_operators(compile_for_gpu: Callable[..., Any]) -> None:
    engine, program = compile_for_gpu(None, "model.dim=64", "model.heads=1")
    called = ("qk_norm_rope_ring_write",)
    assert engine.requires.operators == called
    assert operators_of(program) == {*called, "flash_attention_sm90", "padded_attention_sm90"}
    gelu = torch.ops.aten._addmm_activation.default  # In the epilogue of the matmul before it.
    assert program.graph.find_nodes(op="call_function", target=gelu)
    assert engine.notes == ()
    layer = "transformer.blocks.0.attn1"
    parts = [f"{layer}.to_{part}.bias" for part in "qkv"]
    assert engine.options["packed"][f"{layer}.to_qkv.bias"] == parts


def test_missing_kernels_are_noted(
    compile_for_gpu: Callable[..., Any],
) -> None:
    engine, program = compile_for_gpu(LIBRARY_FAULT, "model.dim=64", "model.heads=1")
    assert engine.requires.operators == ()
    assert engine.options["packed"] == {}
    assert operators_of(program) == {"flash_attention_sm90", "padded_attention_sm90"}
    (note,) = engine.notes
    assert "vidc::qk_norm_rope_ring_write" in note
    assert "gelu_quantize" not in note
    assert "no library is installed; install it" in note


def test_unsupported_sizes_are_noted(compile_for_gpu: Callable[..., Any]) -> None:
    engine, _ = compile_for_gpu(None, "model.dim=48", "model.heads=2")
    assert engine.requires.operators == ()
    (note,) = engine.notes
    assert "expected a head size of 32, 64 or 128, found 24" in note


class Upsampled(nn.Module):
    """A convolution of upsampled images, which has three forms on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.toy = nn.ParameterDict({"kernel": torch.empty(8, 4, 3, 3, dtype=torch.float16)})

    def forward(self, x: Tensor) -> tuple[Tensor]:
        larger = nn.functional.interpolate(x.float(), scale_factor=2.0, mode="nearest-exact")
        return (nn.functional.conv2d(larger.type_as(x), self.toy["kernel"], padding=1),)


@pytest.mark.parametrize(
    ("measure", "reason"), [(True, "there is no GPU"), (False, "setting aoti.measure is false")]
)
def test_engine_records_the_forms_of_its_convolutions(
    tmp_path: Path, programs: list[ExportedProgram], measure: bool, reason: str
) -> None:
    signature = Signature(
        (
            TensorSpec("x", (1, 4, 6, 5), "float16", Role.INPUT),
            TensorSpec("y", (1, 8, 12, 10), "float16", Role.OUTPUT),
        )
    )
    exported = ExportedComponent("toy", tmp_path, signature)
    save_program(export_program(Component("toy", Upsampled(), signature)), exported.program)
    options = CompileOptions(measure=measure, cache_folder=tmp_path / "kept")
    engine = backend.compile(exported, targets()["h200"], {}, tmp_path / "output", options)
    assert engine.files == ("engines/aoti/toy.pt2", "engines/aoti/toy.convolutions.json")
    found = convolutions_of(tmp_path / "output" / engine.files[0])
    assert found == {
        "4 > 8, 1 upsampled images of 6x5": Choice(Form.UPSAMPLED, Decided.BY_RULE, reason),
        "4 > 8, 1 image of 12x10, filter 3x3, stride 1x1, padding 1x1": Choice(
            Form.IMAGES, Decided.BY_RULE, reason
        ),
    }
    assert engine.notes == ()
    assert len(programs) == 1


def test_gpu_without_attention_kernel_is_unsupported() -> None:
    assert backend.precisions(targets()["t4"]) == frozenset()


def test_other_gpu_cannot_build(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no CUDA device" in (backend.unavailable(targets()["h100"]) or "")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA A100")
    reason = backend.unavailable(targets()["h100"])
    assert reason == "the GPU here is NVIDIA A100, of compute capability 8.0"
