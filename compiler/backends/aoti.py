"""Backend ``aoti``: native code from AOTInductor, without weights, for a CPU or a Hopper GPU."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from vidc.compiler.backends import CompiledEngine
from vidc.compiler.cxx import cxx_defect, cxx_version
from vidc.compiler.gpu import absent
from vidc.compiler.inductor import (
    compile_package,
    inductor_cache,
    named_constants,
    used_cpu_features,
)
from vidc.compiler.settings.targets import Target
from vidc.exporters.artifact import ExportedComponent
from vidc.plugins.errors import UnavailableError
from vidc.runtime.manifest import Requirements

NAME = "aoti"
FOLDER = "engines/aoti"
CAPABILITIES = ("9.0",)
"""Compute capabilities of GPUs that there is an attention kernel for."""


class AotInductorBackend:
    """Operators of namespace ``vidc`` stay calls into them; states are written in place."""

    def precisions(self, target: Target) -> frozenset[str]:
        """fp32, bf16 and fp16 on a CPU; bf16 and fp16, which attention has, on a Hopper GPU."""
        if not target.is_gpu:
            return frozenset({"fp32", "bf16", "fp16"})
        supported = target.compute_capability in CAPABILITIES
        return frozenset({"bf16", "fp16"}) if supported else frozenset()

    def kernels(self, target: Target) -> tuple[str, ...]:
        """Attention on a GPU."""
        return ("flash_attention",) if target.is_gpu else ()

    def tools(self, target: Target) -> Mapping[str, str]:
        """PyTorch and the C++ compiler, and what the code depends on: CUDA, or the CPU."""
        tools = {"torch": torch.__version__, "c++": cxx_version()}
        if target.is_gpu:
            return tools | {"cuda": torch.version.cuda or "none"}
        cpu = (torch.backends.cpu.get_cpu_capability(), *used_cpu_features())
        return tools | {"cpu": " ".join(cpu)}

    def anywhere(self, target: Target) -> bool:
        """No: it tries its kernels out on the GPU."""
        return False

    def unavailable(self, target: Target) -> str | None:
        """Needs a C++ compiler that works and, for a GPU, one of its compute capability."""
        if target.is_gpu and (reason := absent(target)) is not None:
            return reason
        defect = cxx_defect()
        return None if defect is None else defect.reason

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
    ) -> CompiledEngine:
        """Compiles the component's program.

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
        channels_last: tuple[str, ...] = ()
        if target.is_gpu:
            from vidc.compiler.cuda import for_cuda

            program, channels_last = for_cuda(program)
        constants = named_constants(program)
        with inductor_cache(component.program):
            compile_package(program, package)
        strip_pickles(package)
        files = [package, *_save_constants(constants, package)]
        for folder in kernels.values():
            files += [Path(shutil.copy(file, package.parent)) for file in sorted(folder.iterdir())]
        written = frozenset(s.name for s in component.signature.states if s.writes)
        return CompiledEngine(
            loader=NAME,
            version=torch.__version__,
            files=tuple(file.relative_to(output).as_posix() for file in files),
            signature=component.signature.with_in_place(written),
            options={"channels_last": list(channels_last)},
            requires=Requirements(torch.__version__, used_cpu_features()),
        )


def _save_constants(constants: Mapping[str, Tensor], package: Path) -> list[Path]:
    from safetensors.torch import save_file

    if not constants:
        return []
    file = package.with_suffix(".safetensors")
    save_file({name: value.contiguous() for name, value in constants.items()}, file)
    return [file]


backend = AotInductorBackend()
