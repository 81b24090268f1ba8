"""Backend ``aoti``: native code from AOTInductor, without weights, for a CPU."""

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind

from vidc.compiler.backends import CompiledEngine
from vidc.compiler.cxx import cxx_defect, cxx_version
from vidc.exporters.artifact import ExportedComponent
from vidc.plugins.errors import UnavailableError
from vidc.runtime.compatibility import cpu_features
from vidc.runtime.manifest import Requirements

NAME = "aoti"
FOLDER = "engines/aoti"

_INDUCTOR: Mapping[str, Any] = {
    # Weights come from the bundle's own files; their values are not even there yet.
    "aot_inductor.package_constants_in_so": False,
    # Else small weights are written into the code, with whatever values they have now.
    "always_keep_tensor_constants": True,
    # Else the code is for the number of threads of this process.
    "cpp.dynamic_threads": True,
}
_TIDY: Mapping[str, Any] = {
    # They only cost time in a cache that is used once, and lines name folders of this machine.
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,
}
"""Options that torch before 2.13 lacks in part; without them engines are right all the same."""


_VECTORISED = frozenset({"avx2", "avx512_f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_fp16"})
"""What inductor vectorises for on an x86 CPU without being told of one, by torch's names."""


class AotInductorBackend:
    """Operators of namespace ``vidc`` stay calls into them; states are written in place."""

    def precisions(self, device_type: str) -> frozenset[str]:
        """fp32, bf16 and fp16 on a CPU."""
        return frozenset({"fp32", "bf16", "fp16"}) if device_type == "cpu" else frozenset()

    def tools(self) -> Mapping[str, str]:
        """PyTorch and the C++ compiler, and the CPU's instructions, which the code depends on."""
        return {
            "torch": torch.__version__,
            "c++": cxx_version(),
            "cpu": " ".join((torch.backends.cpu.get_cpu_capability(), *_used_features())),
        }

    def unavailable(self, device_type: str) -> str | None:
        """Builds for a CPU where a C++ compiler works."""
        if device_type != "cpu":
            return "it builds for CPUs alone"
        defect = cxx_defect()
        return None if defect is None else defect.reason

    def compile(self, component: ExportedComponent, output: Path) -> CompiledEngine:
        """Compiles the component's program; takes 10 seconds for two layers, a minute for thirty.

        Raises:
            UnavailableError: ``VIDC-ENV-AOTI``.
        """
        defect = cxx_defect()
        if defect is not None:
            raise UnavailableError(
                "VIDC-ENV-AOTI",
                f"backend {NAME} cannot compile {component.name}: {defect.reason}",
                defect.hint,
            )
        from vidc.compiler.packages import strip_pickles
        from vidc.exporters.program import load_program

        package = output / FOLDER / f"{component.name}.pt2"
        package.parent.mkdir(parents=True, exist_ok=True)
        program = load_program(component.program)
        constants = _named_constants(program)
        with _inductor_cache(component.program):
            _compile(program, package)
        strip_pickles(package)
        files = [package, *_save_constants(constants, package)]
        written = frozenset(s.name for s in component.signature.states if s.writes)
        return CompiledEngine(
            loader=NAME,
            version=torch.__version__,
            files=tuple(file.relative_to(output).as_posix() for file in files),
            signature=component.signature.with_in_place(written),
            options={},
            requires=Requirements(torch.__version__, _used_features()),
        )


def _may_choose_cpu() -> bool:
    """Whether inductor can be kept from ``-march=native``: with torch 2.13, not with 2.12."""
    from torch._inductor import config

    return hasattr(config.cpp, "march")


def _used_features() -> tuple[str, ...]:
    """The instructions of this CPU that compiled code may use: all, where it is made for it."""
    present = cpu_features()
    if _may_choose_cpu() and platform.machine() == "x86_64":
        present &= _VECTORISED
    return tuple(sorted(present))


def _named_constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Tensors of the graph that are no weights, by the names that the package will ask for.

    Inductor gives a lifted constant a new name and keeps that of a buffer.
    """
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR:
            spec.kind, spec.persistent = InputKind.BUFFER, False
    return {name: value for name, value in program.constants.items() if isinstance(value, Tensor)}


def _compile(program: ExportedProgram, package: Path) -> None:
    from vidc.exporters.quiet import quiet_torch

    generic = {"cpp.march": ""} if _may_choose_cpu() else {}
    known = torch._inductor.config.get_config_copy()
    tidy = {option: value for option, value in _TIDY.items() if option in known}
    # stdout is for results alone.
    with quiet_torch(), redirect_stdout(sys.stderr), torch.no_grad():
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(package), inductor_configs={**_INDUCTOR, **tidy, **generic}
        )


def _save_constants(constants: Mapping[str, Tensor], package: Path) -> list[Path]:
    from safetensors.torch import save_file

    if not constants:
        return []
    file = package.with_suffix(".safetensors")
    save_file({name: value.contiguous() for name, value in constants.items()}, file)
    return [file]


@contextmanager
def _inductor_cache(program: Path) -> Iterator[None]:
    """An empty cache for inductor, removed afterwards.

    Its path ends up in the engine, so it depends on the program alone: equal programs give equal
    engines.
    """
    from torch._inductor.utils import clear_caches

    from vidc.compiler.pipeline.digest import sha256_file

    folder = Path(tempfile.gettempdir(), f"vidc-aoti-{sha256_file(program)[:16]}")
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:  # Of another build of this program, or the remains of one.
        folder = Path(tempfile.mkdtemp(prefix=folder.name))
    variable = "TORCHINDUCTOR_CACHE_DIR"
    before = os.environ.get(variable)
    os.environ[variable] = str(folder)
    clear_caches()
    try:
        yield
    finally:
        clear_caches()
        if before is None:
            del os.environ[variable]
        else:
            os.environ[variable] = before
        shutil.rmtree(folder, ignore_errors=True)


backend = AotInductorBackend()
