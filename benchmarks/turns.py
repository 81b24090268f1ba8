"""Samples several ways to do the same work in turns, each a CUDA graph of calls.

A graph cycles through sets of arguments that together exceed the GPU's cache. If the clock drifts,
it drifts for all ways alike.
"""

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vidc.compiler.bench.clock import Clock
from vidc.compiler.bench.statistics import Summary
from vidc.plugins.ops.flash_attention import load_kernel
from vidc.runtime.strict import plain

BEYOND_CACHES = 256 * 2**20
"""Bytes: several times the L2 of the largest GPU."""
LEAST_CALLS = 20
"""Least number of calls in a graph, so that its launch takes a small share of the time."""
WARM_UP = 20

Arguments = tuple[Any, ...]


def argument_sets(make: Callable[[], Arguments], device: torch.device) -> list[Arguments]:
    """Draws so many sets of arguments that no cache holds them all; one on a CPU."""
    first = make()
    size = sum(value.nbytes for value in first if isinstance(value, Tensor))
    count = -(-BEYOND_CACHES // size) if device.type == "cuda" else 1
    return [first, *(make() for _ in range(count - 1))]


class Form:
    """One way to do the work: called on each set of arguments in turn, on a GPU as one graph."""

    def __init__(self, call: Callable[..., Any], sets: list[Arguments], clock: Clock) -> None:
        self.calls = max(LEAST_CALLS, len(sets))
        self._clock = clock
        self._sets = sets  # A graph reads them where they were.

        def work() -> None:
            for index in range(self.calls):
                call(*sets[index % len(sets)])

        work()
        clock.wait()
        self._work: Callable[[], None] = work
        if torch.cuda.is_available():
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                work()
            self._work = graph.replay

    def sample(self) -> float:
        """Milliseconds of a call."""
        first = self._clock.mark()
        self._work()
        return self._clock.between(first, self._clock.mark()) / self.calls


def sampled(forms: Mapping[str, Form], samples: int) -> dict[str, list[float]]:
    """Milliseconds of a call, ``samples`` of each form, after as many turns as warm a GPU up."""
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for turn in range(WARM_UP + samples):
        for name in forms if turn % 2 else reversed(list(forms)):
            milliseconds = forms[name].sample()
            if turn >= WARM_UP:
                taken[name].append(milliseconds)
    return taken


def rates(values: list[float], moved: int, operations: int | None = None) -> dict[str, Any]:
    """Statistics of samples in milliseconds, and the median's GB/s and TFLOP/s.

    Args:
        values: samples of one call.
        moved: bytes that a call reads and writes.
        operations: of a call; None for a call whose TFLOP/s say nothing.
    """
    summary = Summary.of(values)
    found = {**plain(summary), "gbps": moved / summary.median / 1e6}
    if operations is not None:
        found["tflops"] = operations / summary.median / 1e9
    return {**found, "samples": values}


def options(description: str | None) -> argparse.ArgumentParser:
    """Options of every benchmark in turns."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--small", action="store_true", help="sizes for a dry run")
    return parser


def attention_options(
    description: str | None, pattern: str
) -> tuple[argparse.Namespace, torch.device]:
    """Reads a command line that names a folder of kernels, and loads those that match a pattern."""
    parser = options(description)
    parser.add_argument("kernels", nargs="?", type=Path, help="folder of *.cubin")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cuda" and args.kernels is None:
        parser.error("which kernels? give a folder of *.cubin")
    for kernel in sorted(args.kernels.glob(pattern)) if args.kernels else ():
        load_kernel(kernel)
    return args, device
