"""Builds a program that launches the ring write's kernel, with a barrier or with a race."""

import shutil
import subprocess
from pathlib import Path

from vidc import plugins

CUDA = Path(next(iter(plugins.__path__))) / "cuda"
SOURCE = Path(__file__).with_name("planted_race.cu")
BARRIER = "  __syncthreads();\n  float2 total = partial[0];\n"
"""Between what warps write of a sum and what all threads read of it."""


def sources(folder: Path, race: bool) -> Path:
    """Copies of the kernel's headers and of the program, whose path is returned."""
    for file in (*CUDA.glob("*.*h"), SOURCE):
        shutil.copy(file, folder)
    if race:
        header = folder / "sm75_sum.cuh"
        text = header.read_text()
        assert text.count(BARRIER) == 1
        header.write_text(text.replace(BARRIER, BARRIER.partition("\n")[2]))
    return folder / SOURCE.name


def build(folder: Path, race: bool) -> Path:
    """The program, for the GPU of this machine."""
    program = folder / "planted_race"
    command = ["nvcc", "-std=c++17", "-arch=native", sources(folder, race), "-o", program]
    subprocess.run(command, check=True, timeout=300)
    return program
