"""Compiles variants of an engine for a GPU in parallel, loads them and profiles them."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from vidc.compiler.backends.aoti.cuda import CudaProgram
from vidc.compiler.backends.aoti.inductor import compile_package, named_constants
from vidc.runtime.weights import CHANNELS_LAST


@contextmanager
def compiled(compile_one: Callable[[str, Path], None], names: Iterable[str]) -> Iterator[Path]:
    """Compiles each variant in a process of its own into one folder, which is then removed.

    Args:
        compile_one: writes the package of the variant of this name into a folder. It is pickled.
        names: of the variants.
    """
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device: the engines are for a GPU")
    with tempfile.TemporaryDirectory() as folder:
        found = list(names)
        with ProcessPoolExecutor(len(found), get_context("spawn")) as pool:
            for job in [pool.submit(compile_one, name, Path(folder)) for name in found]:
                job.result()
        yield Path(folder)


def write_package(
    lowered: CudaProgram,
    folder: Path,
    name: str,
    inductor: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Writes a package, its constants and the names of channels-last weights."""
    save_file(named_constants(lowered.program), folder / f"{name}.safetensors")
    (folder / f"{name}.json").write_text(json.dumps(lowered.channels_last))
    compile_package(lowered.program, folder / f"{name}.pt2", inductor)


def constants_of(
    keys: Iterable[str], folder: Path, name: str, drawn: Callable[[str], Tensor]
) -> dict[str, Tensor]:
    """Returns the constants of a package on the GPU, in the layouts that it reads.

    Args:
        keys: names of the constants.
        folder: as ``write_package`` left it.
        name: of the variant.
        drawn: returns the weight of a name that is no constant of the program's own.
    """
    last = json.loads((folder / f"{name}.json").read_text())
    own, found = load_file(folder / f"{name}.safetensors"), {}
    for key in keys:
        value = (own[key] if key in own else drawn(key)).cuda()
        form = CHANNELS_LAST[value.dim()] if key in last else torch.contiguous_format
        found[key] = value.contiguous(memory_format=form)
    return found


def kernels(work: Callable[[], Any]) -> list[tuple[str, int, float]]:
    """Name, calls and milliseconds of each kernel of some work, the longest first."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        work()
        torch.cuda.synchronize()
    found = [(e.key, e.count, e.device_time_total / 1e3) for e in profiled.key_averages()]
    return sorted(found, key=lambda each: -each[2])
