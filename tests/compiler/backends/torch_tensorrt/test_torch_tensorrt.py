"""Refusals of the backend; where the package must be there for one, a stand-in takes its place."""

import logging
import re
import sys
from functools import cache
from types import SimpleNamespace

import fake_torch_tensorrt
import pytest
from torch import fx

from vidc.compiler.backends.tensorrt.backend import backend as by_onnx
from vidc.compiler.backends.torch_tensorrt import converters, package
from vidc.compiler.backends.torch_tensorrt.backend import backend
from vidc.compiler.build.lines import naming_lines
from vidc.compiler.config.resolve import resolve
from vidc.compiler.config.targets import targets
from vidc.exporters.export import export_component
from vidc.plugins.errors import BuildError, UnavailableError
from vidc.plugins.installation import install_extra

RTX = targets()["rtx4090"]
PACKAGE = package.PACKAGES["tensorrt_rtx"]


@pytest.fixture
def stand_in(monkeypatch):
    """The stand-in's modules and the converters that are registered with it."""
    registered = {}
    modules = fake_torch_tensorrt.modules("tensorrt_rtx", registered)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", SimpleNamespace())
    converters.register.cache_clear()
    yield SimpleNamespace(**{name.rpartition(".")[2]: m for name, m in modules.items()},
                          registered=registered)  # fmt: skip
    converters.register.cache_clear()


def settings(sink):
    return resolve("tiny", gpu="rtx4090", backend="torch_tensorrt", precision="fp16",
                   assignments=[f"stream.sink={sink}"], environ={})  # fmt: skip


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """Components of a small stream in float16, aligned (``sink`` 3) and not, each exported once."""

    @cache
    def export(name, sink=3):
        part = settings(sink).model.parts["transformer"]
        return export_component(part, "fp16", name, tmp_path_factory.mktemp(name))

    return export


@pytest.mark.parametrize(
    ("target", "precisions"),
    [
        ("rtx4090", {"fp32", "fp16", "bf16"}),
        ("h100", {"fp32", "fp16", "bf16"}),
        ("t4", {"fp32", "fp16"}),
        ("cpu", set()),
    ],
)
def test_precisions_are_those_of_gpu_without_8_bits(target, precisions):
    assert backend.precisions(targets()[target]) == precisions


@pytest.mark.parametrize("target", targets())
def test_is_never_default_and_supports_targets_of_tensorrt(target):
    assert bool(backend.precisions(targets()[target])) == bool(
        by_onnx.precisions(targets()[target])
    )
    chosen = resolve("tiny", gpu=target, precision="fp16", environ={}).backend
    assert chosen != "torch_tensorrt"


def lacking(*names):
    def version(distribution):
        if distribution in names:
            return None
        return "1.2.3"

    return version


@pytest.mark.parametrize(
    ("target", "lacks", "says"),
    [
        ("rtx4090", "torch-tensorrt-rtx",
         " install --no-deps 'torch-tensorrt-rtx=="),
        ("rtx4090", "torch-tensorrt-rtx", "all on PyPI"),
        ("rtx4090", "tensorrt-rtx", f"TensorRT-RTX is not installed: {install_extra('rtx')}"),
        ("h200", "torch-tensorrt", "--extra-index-url https://pypi.nvidia.com 'torch-tensorrt=="),
        ("h200", "torch-tensorrt", "on NVIDIA's own index"),
        ("h200", "tensorrt", "install --extra-index-url https://pypi.nvidia.com tensorrt: its"),
        ("h200", "", "torch finds no CUDA device here"),
        ("cpu", "", "it builds for GPUs only"),
    ],
)  # fmt: skip
def test_missing_package_is_named_with_index(monkeypatch, target, lacks, says):
    for module in ("torch_tensorrt.package", "tensorrt.product"):
        monkeypatch.setattr(f"vidc.compiler.backends.{module}.installed", lacking(lacks))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert says in (backend.unavailable(targets()[target]) or "")


@pytest.mark.parametrize(
    ("release", "works"), [("2.11.0", False), ("2.12.1", False), ("2.13.0", True), ("2.14.0", True)]
)
def test_release_older_than_the_product_is_refused(monkeypatch, release, works):
    for module in ("torch_tensorrt.package", "tensorrt.product"):
        monkeypatch.setattr(f"vidc.compiler.backends.{module}.installed", lambda name: release)
    monkeypatch.setattr(
        "vidc.compiler.backends.torch_tensorrt.backend.gpu_unavailable", lambda target: None
    )
    said = backend.unavailable(RTX)
    assert (
        said is None if works else said.startswith(f"torch-tensorrt-rtx {release} does not import")
    )


def test_install_command_matches_torch_release(monkeypatch):
    monkeypatch.setattr("torch.__version__", "2.14.1+cu130")
    assert "torch-tensorrt-rtx==2.14.*" in PACKAGE.install


def test_import_error_has_reason(monkeypatch, exported, tmp_path):
    monkeypatch.setitem(sys.modules, "torch_tensorrt", None)
    with pytest.raises(UnavailableError, match="cannot be imported: ModuleNotFoundError") as caught:
        backend.compile(exported("text_kv"), RTX, {}, tmp_path)
    assert caught.value.code == "VIDC-ENV-TORCH-TENSORRT"
    assert "imports on a machine with a GPU alone" in caught.value.hint


def test_whatever_the_package_raises_on_import_is_reported(monkeypatch):
    def refuse(name):
        raise AssertionError("Torch not compiled with CUDA enabled")

    monkeypatch.setattr(package, "import_module", refuse)
    with pytest.raises(UnavailableError, match="AssertionError: Torch not compiled with CUDA"):
        PACKAGE.module()


def test_the_package_for_the_other_product_is_refused(stand_in, exported, tmp_path):
    with pytest.raises(
        UnavailableError, match="builds with tensorrt_rtx, and the target"
    ) as caught:
        backend.compile(exported("text_kv"), targets()["h100"], {}, tmp_path)
    assert caught.value.code == "VIDC-ENV-TORCH-TENSORRT"
    assert "uninstall it" in caught.value.hint


@pytest.mark.parametrize(
    ("reason", "logged", "code", "says"),
    [
        ("expand called", "", "VIDC-TORCH-TENSORRT-CONVERT", "KeyError: expand called"),
        ("None", "no kernel", "VIDC-TORCH-TENSORRT-CONVERT", "KeyError: None; no kernel"),
        ("CUDA out of memory", "", "VIDC-TENSORRT-MEMORY", "ran out of memory"),
    ],
)
def test_unsupported_operator_is_coded_error(
    stand_in, monkeypatch, exported, tmp_path, capfd, reason, logged, code, says
):
    def refuse(program, **options):
        if logged:
            logging.getLogger("torch_tensorrt [TensorRT Conversion Context]").error(logged)
        logging.getLogger("torch_tensorrt.dynamo._compiler").error("pages of a graph")
        print("more of them")
        raise RuntimeError("a whole graph" * 1000) from KeyError(reason)

    name = "convert_exported_program_to_serialized_trt_engine"
    monkeypatch.setattr(stand_in.dynamo, name, refuse)
    with pytest.raises(BuildError) as caught:
        backend.compile(exported("text_kv"), RTX, {}, tmp_path)
    assert caught.value.code == code
    assert "text_kv: torch-tensorrt-rtx" in caught.value.message
    assert says in caught.value.message
    assert len(caught.value.message) < 800
    said = capfd.readouterr()
    assert "pages of a graph" not in said.out + said.err
    assert said.out == ""


class Converting(fx.Interpreter):
    """Visits the nodes of a program as the package does, and fails at one kind."""

    def __init__(self, module, failing, raised):
        super().__init__(module)
        self.failing, self.raised = failing, raised

    def run_node(self, n):
        if n.op == "call_function" and self.failing in str(n.target):
            raise self.raised("no converter")
        return n.meta.get("val")


@pytest.mark.parametrize(
    ("failing", "code", "raised", "sink"),
    [
        ("native_layer_norm", "self.attention_input(", KeyError, 3),
        ("aten.gelu", "F.gelu(", RuntimeError, 2),
        ("aten.sigmoid", "self.activation(", RuntimeError, 3),
    ],
)
def test_conversion_error_names_node_and_line(
    stand_in, monkeypatch, exported, tmp_path, failing, code, raised, sink
):
    """The package's lowering, of which PyTorch's own is the most, gives nodes other names."""

    def refuse(program, **options):
        Converting(program.run_decompositions().graph_module, failing, raised).run()

    name = "convert_exported_program_to_serialized_trt_engine"
    monkeypatch.setattr(stand_in.dynamo, name, refuse)
    with pytest.raises(BuildError) as caught, naming_lines(settings(sink)):
        backend.compile(exported("denoise", sink), RTX, {}, tmp_path)
    assert caught.value.code == "VIDC-TORCH-TENSORRT-CONVERT"
    says = r"denoise: .* its program at node \w+: \w+Error: no converter; it comes from .*:\d+: "
    assert re.match(says, caught.value.message)
    assert code in caught.value.message
