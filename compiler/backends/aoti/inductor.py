"""Compiles an ExportedProgram with AOTInductor to a package without weights."""

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
from torch.nn.attention import SDPBackend, sdpa_kernel

from vidc.runtime.compatibility import cpu_features

OPTIONS: Mapping[str, Any] = {
    # Weights come from the bundle's own files; their values are not even there yet.
    "aot_inductor.package_constants_in_so": False,
    # Else small weights are written into the code, with whatever values they have now.
    "always_keep_tensor_constants": True,
    # Else so is what is computed from weights of one element, such as scales.
    "joint_graph_constant_folding": False,
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
"""What inductor vectorizes for on an x86 CPU without being told of one, by torch's names."""
_ATTENTION = [
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""Implementations of PyTorch's attention, the fastest on a Hopper GPU first.

Heads wider than 256 channels, as in the VAE, have the later ones alone.
"""


def used_cpu_features() -> tuple[str, ...]:
    """The instructions of this CPU that compiled code may use: all, where it is made for it."""
    present = cpu_features()
    if _may_choose_cpu() and platform.machine() == "x86_64":
        present &= _VECTORISED
    return tuple(sorted(present))


def named_constants(program: ExportedProgram) -> dict[str, Tensor]:
    """Tensors of the graph that are no weights, by the names that the package will ask for.

    Inductor gives a lifted constant a new name and keeps that of a buffer.
    """
    for spec in program.graph_signature.input_specs:
        if spec.kind is InputKind.CONSTANT_TENSOR:
            spec.kind, spec.persistent = InputKind.BUFFER, False
    return {name: value for name, value in program.constants.items() if isinstance(value, Tensor)}


def compile_package(program: ExportedProgram, package: Path) -> None:
    """Writes the package; takes 10 seconds for two layers, a minute or two for thirty."""
    from vidc.exporters.quiet import quiet_torch

    generic = {"cpp.march": ""} if _may_choose_cpu() else {}
    known = torch._inductor.config.get_config_copy()
    tidy = {option: value for option, value in _TIDY.items() if option in known}
    # stdout is for results alone.
    with (
        quiet_torch(),
        redirect_stdout(sys.stderr),
        torch.no_grad(),
        sdpa_kernel(_ATTENTION, set_priority=True),
    ):
        torch._inductor.aoti_compile_and_package(
            program, package_path=str(package), inductor_configs={**OPTIONS, **tidy, **generic}
        )


@contextmanager
def inductor_cache(program: Path) -> Iterator[None]:
    """An empty cache for inductor, removed afterwards.

    Its path ends up in the engine, so it depends on the program alone: equal programs give equal
    engines.
    """
    from torch._inductor.utils import clear_caches

    from vidc.compiler.store.digest import sha256_file

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


def _may_choose_cpu() -> bool:
    """Whether inductor can be kept from ``-march=native``: with torch 2.13, not with 2.12."""
    from torch._inductor import config

    return hasattr(config.cpp, "march")
