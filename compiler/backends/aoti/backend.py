"""Backend ``aoti``: AOTInductor packages without weights, for a CPU or a Hopper GPU."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidc.compiler.backends import DEFAULT_OPTIONS, Backend, CompiledEngine, CompileOptions
from vidc.compiler.backends.aoti.convolution_choices import (
    SUFFIX,
    Choice,
    choices_json,
    engine_chooser,
)
from vidc.compiler.backends.aoti.convolutions import bind_implementations
from vidc.compiler.backends.aoti.cxx import cxx_defect, cxx_version
from vidc.compiler.backends.aoti.fusion import NOTHING, fusable
from vidc.compiler.backends.aoti.inductor import (
    compile_package,
    inductor_cache,
    named_constants,
    used_cpu_features,
)
from vidc.compiler.config.schema import EIGHT_BITS
from vidc.compiler.config.targets import Target, gpu_unavailable
from vidc.compiler.quantize.support import AOTI_CPU, AOTI_GPU, QuantizationSupport
from vidc.compiler.store.atomic import write_json
from vidc.exporters.artifact import ExportedComponent
from vidc.exporters.lowering import expand, open_stored
from vidc.plugins import engine_operators, loading
from vidc.plugins.abi import PLUGIN_ABI
from vidc.plugins.errors import UnavailableError
from vidc.plugins.ops.fake_quantize import fake_quantize, fake_quantize_reference
from vidc.plugins.ops.padded_attention import padded_attention, padded_attention_reference
from vidc.plugins.ops.qk_norm_rope import qk_norm_rope, qk_norm_rope_reference
from vidc.plugins.ops.quantized_conv2d import quantized_conv2d, quantized_conv2d_reference
from vidc.plugins.ops.quantized_linear import quantized_linear, quantized_linear_reference
from vidc.runtime.manifest import Requirements

NAME = "aoti"
FOLDER = "engines/aoti"
CAPABILITIES = ("9.0",)
"""Compute capabilities that the attention kernel supports."""


class AotInductorBackend(Backend):
    """Compiles programs that call vidc's operators and update states in place.

    It does not cross-compile: it tunes its kernels on the GPU.
    """

    def quantization(self, target: Target) -> QuantizationSupport:
        """Returns the support of programs; a CPU runs the operators' references."""
        return AOTI_GPU if target.is_gpu else AOTI_CPU

    def precisions(self, target: Target) -> frozenset[str]:
        """Returns all for a CPU; all but fp32 for a Hopper GPU, whose attention has no fp32."""
        if not target.is_gpu:
            return frozenset({"fp32", "bf16", "fp16", *EIGHT_BITS}) & frozenset(target.precisions)
        supported = target.compute_capability in CAPABILITIES
        return frozenset({"bf16", "fp16", *EIGHT_BITS}) if supported else frozenset()

    def kernels(self, target: Target) -> tuple[str, ...]:
        """Returns the attention kernel for a GPU."""
        return ("flash_attention",) if target.is_gpu else ()

    def tools(self, target: Target) -> Mapping[str, str]:
        """Returns torch, the C++ compiler, and CUDA with the kernel library or the CPU features."""
        tools = {"torch": torch.__version__, "c++": cxx_version()}
        if target.is_gpu:
            # The ABI, not the version: engines call the library's operators but hold no code of it.
            there = loading.torch_library_error() is None
            kernels = f"ABI {PLUGIN_ABI}" if there else "none"
            return tools | {"cuda": torch.version.cuda or "none", loading.TORCH_LIBRARY: kernels}
        cpu = (torch.backends.cpu.get_cpu_capability(), *used_cpu_features())
        return tools | {"cpu": " ".join(cpu)}

    def unavailable(self, target: Target) -> str | None:
        """Returns None if the C++ compiler works and the target's GPU is here."""
        if not self.precisions(target):
            return f"it builds for GPUs of compute capability {', '.join(CAPABILITIES)} alone"
        if target.is_gpu and (reason := gpu_unavailable(target)) is not None:
            return reason
        defect = cxx_defect()
        return None if defect is None else defect.reason

    def compile(
        self,
        component: ExportedComponent,
        target: Target,
        kernels: Mapping[str, Path],
        output: Path,
        options: CompileOptions = DEFAULT_OPTIONS,
    ) -> CompiledEngine:
        """Compiles the component's program.

        Raises:
            UnavailableError: ``VIDC-ENV-AOTI``; for an 8-bit ring what
                ``engine_operators.kernel_error`` returns.
            BuildError: ``VIDC-QUANTIZE-COUNT``.
        """
        defect = cxx_defect()
        if defect is not None:
            raise UnavailableError(
                "VIDC-ENV-AOTI",
                f"backend {NAME} cannot compile {component.name}: {defect.reason}",
                defect.hint,
            )
        from vidc.compiler.backends.aoti.packages import finish_package
        from vidc.exporters.program import load_program

        package = output / FOLDER / f"{component.name}.pt2"
        package.parent.mkdir(parents=True, exist_ok=True)
        program = load_program(component.program)
        channels_last: tuple[str, ...] = ()
        fusion, notes, signature = NOTHING, tuple[str, ...](), component.signature
        inductor: Mapping[str, Any] = {}
        choices: Mapping[str, Choice] = {}
        if target.is_gpu:
            from vidc.compiler.backends.aoti import group_norms, short_attention, winograd
            from vidc.compiler.backends.aoti.cuda import for_cuda
            from vidc.compiler.backends.rings_8bit import (
                has_quantized_rings,
                quantized_signature,
            )

            narrow = has_quantized_rings(program)
            signature = quantized_signature(program, signature)
            wanted = engine_operators.RINGS_8BIT if narrow else engine_operators.PLAIN
            fault = engine_operators.kernel_error(torch.device("cuda"), wanted)
            if fault is not None and narrow:
                raise fault  # Fallback kernels would compute another recipe.
            passes = (winograd, group_norms, short_attention)
            called = {*fusable(program), *(n for p in passes for n in p.fused_operators(program))}
            notes = _notes(tuple(sorted(called)), fault)
            chooser = engine_chooser(options.measure, options.cache_folder)
            with inductor_cache(component.program):  # For the kernels that are measured.
                lowered = for_cuda(program, fault is None, choose=chooser)
            choices = chooser.choices
            program, channels_last, fusion = lowered.program, lowered.channels_last, lowered.fusion
            inductor = lowered.inductor
            notes += fusion.left + chooser.notes
        else:
            expand(program, qk_norm_rope, qk_norm_rope_reference)
            expand(program, padded_attention, padded_attention_reference)
            expand(program, quantized_linear, quantized_linear_reference)
            expand(program, quantized_conv2d, quantized_conv2d_reference)
            expand(program, fake_quantize, fake_quantize_reference)
            open_stored(program)
            bind_implementations(program)
        constants = named_constants(program)
        with inductor_cache(component.program):
            compile_package(program, package, inductor)
        written = frozenset(s.name for s in component.signature.states if s.writes)
        signature = signature.with_in_place(written)
        taken = {
            "channels_last": list(channels_last),
            "packed": {name: list(parts) for name, parts in fusion.packed.items()},
            "products": {name: list(factors) for name, factors in fusion.products.items()},
        }
        finish_package(package, program, signature, taken)
        files = [package, *_save_constants(constants, package), *_save_choices(choices, package)]
        for folder in kernels.values():
            files += [Path(shutil.copy(file, package.parent)) for file in sorted(folder.iterdir())]
        return CompiledEngine(
            loader=NAME,
            version=torch.__version__,
            files=tuple(file.relative_to(output).as_posix() for file in files),
            signature=signature,
            options=taken,
            requires=Requirements(torch.__version__, used_cpu_features(), fusion.operators),
            notes=notes,
        )


def _notes(operators: tuple[str, ...], fault: UnavailableError | None) -> tuple[str, ...]:
    """Returns a note about fused operators that are unavailable."""
    if fault is None or not operators:
        return ()
    names = " and ".join(f"vidc::{name}" for name in operators)
    return (f"slower kernels replace {names}: {fault.message}; {fault.hint}",)


def _save_constants(constants: Mapping[str, Tensor], package: Path) -> list[Path]:
    from safetensors.torch import save_file

    if not constants:
        return []
    file = package.with_suffix(".safetensors")
    save_file({name: value.contiguous() for name, value in constants.items()}, file)
    return [file]


def _save_choices(choices: Mapping[str, Choice], package: Path) -> list[Path]:
    if not choices:
        return []
    file = package.with_suffix(SUFFIX)
    write_json(file, choices_json(choices))
    return [file]


backend = AotInductorBackend()
