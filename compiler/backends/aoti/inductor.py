"""AOTInductor compilation of an ExportedProgram to a package without weights."""

import fcntl
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.nn.attention import SDPBackend, sdpa_kernel

from vidc.compiler.config.environment import cache_root
from vidc.plugins.environment import variable
from vidc.runtime.compatibility import cpu_features

OPTIONS: Mapping[str, Any] = {
    # Weights come from the bundle's files; their values are not known yet.
    "aot_inductor.package_constants_in_so": False,
    # By default small weights are inlined with the values that they have now.
    "always_keep_tensor_constants": True,
    # By default constants computed from one-element weights, such as scales, are inlined too.
    "joint_graph_constant_folding": False,
    # By default code is for the number of threads of this process.
    "cpp.dynamic_threads": True,
}
_TIDY: Mapping[str, Any] = {
    # Precompiled headers cost time in a cache that is used once; line tables name local folders.
    "aot_inductor.precompile_headers": False,
    "aot_inductor.enable_line_tables": False,
}
"""Options that engines are correct without; torch before 2.13 lacks some of them."""
_CACHE, _TRITON_CACHE = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
_VECTORIZED = frozenset({"avx2", "avx512_f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_fp16"})
"""x86 features that inductor uses without ``-march=native``, by torch's names."""
_ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""SDPA backends, the fastest on a Hopper GPU first; the first ones take up to 256 head channels."""


def used_cpu_features() -> tuple[str, ...]:
    """Returns the CPU features that compiled code may use: all present ones under -march=native."""
    present = cpu_features()
    if _may_choose_cpu() and platform.machine() == "x86_64":
        present &= _VECTORIZED
    return tuple(sorted(present))


def named_constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Returns a program's constants by the names that its package asks for.

    Turns lifted constants into buffers, whose names inductor does not change.
    """
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR:
            spec.kind, spec.persistent = InputKind.BUFFER, False
    return {name: value for name, value in program.constants.items() if isinstance(value, Tensor)}


def compile_package(
    program: ExportedProgram, package: Path, options: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """Writes the package, in 10 seconds for two layers and one to two minutes for thirty.

    Args:
        program: the program, on the device that it is compiled for.
        package: the file.
        options: options of inductor besides ``OPTIONS``.
    """
    from vidc.exporters.tracing import quiet_torch

    generic = {"cpp.march": ""} if _may_choose_cpu() else {}
    known = torch._inductor.config.get_config_copy()
    tidy = {option: value for option, value in _TIDY.items() if option in known}
    # stdout is reserved for results.
    with (
        quiet_torch(),
        redirect_stdout(sys.stderr),
        torch.no_grad(),
        sdpa_kernel(_ATTENTION, set_priority=True),
    ):
        torch._inductor.aoti_compile_and_package(
            program,
            package_path=str(package),
            inductor_configs={**OPTIONS, **tidy, **generic, **options},
        )


@contextmanager
def inductor_cache(program: Path) -> Iterator[None]:
    """Gives inductor an empty cache folder and removes it afterwards.

    The folder's path is part of the engine, so it is derived from the program: equal programs give
    equal engines. Triton's folder lies in it and is set as well. Otherwise inductor would set it
    once, at the process's first kernel, and later engines would use a folder that is gone.

    Only the probes of vector instructions are kept, in the build cache. They take a third of a
    small engine's compile time, and depend on the machine, the compiler and torch alone.
    """
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    from torch._inductor.utils import clear_caches

    from vidc.compiler.store.digest import sha256_file

    probes = cache_root(os.environ) / ".vector_probes"
    probes.mkdir(mode=0o700, parents=True, exist_ok=True)
    with variable(_CACHE, str(probes)):
        valid_vec_isa_list()  # Cached in this process.
    folder = Path(tempfile.gettempdir(), f"vidc-aoti-{sha256_file(program)[:16]}")
    lock = _claim(folder)
    if lock is None:
        folder = Path(tempfile.mkdtemp(prefix=folder.name))
    with variable(_CACHE, str(folder)), variable(_TRITON_CACHE, str(folder / "triton")):
        clear_caches()
        try:
            yield
        finally:
            clear_caches()
            shutil.rmtree(folder, ignore_errors=True)
            if lock is not None:
                os.close(lock)


def _claim(folder: Path) -> int | None:
    """Empties or makes a folder and returns its lock; None if a running build has it."""
    with suppress(OSError), ExitStack() as opened:
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        opened.callback(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(lock)
        if found.st_uid == os.geteuid() and os.path.samestat(found, folder.stat()):
            for left in folder.iterdir():  # Of a build that was killed.
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            opened.pop_all()
            return lock
    return None


def _may_choose_cpu() -> bool:
    """Returns True if inductor has an option for ``-march``: in torch 2.13, not in 2.12."""
    from torch._inductor import config

    return hasattr(config.cpp, "march")
