"""Replays a function of tensors as a CUDA graph: a training step has thousands of small kernels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Function = Callable[[Sequence[Tensor]], list[Tensor]]


class Replayed:
    """A function that runs once as it is, then is captured and replayed.

    The first call runs without a graph, so that libraries and optimizers make what they keep: a
    capture may not. The second call captures, which computes nothing, and replays, as all later
    calls do. Inputs keep their shapes; other tensors that the function uses keep their memory. A
    call overwrites the outputs of the call before, and of other graphs that share the memory
    ``pool``.
    """

    def __init__(self, function: Function, pool: Any) -> None:
        self._function, self._pool = function, pool
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: list[Tensor] | None = None
        self._outputs: list[Tensor] = []

    def __call__(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if self._inputs is None:
            self._inputs = [each.detach().clone() for each in inputs]
            return self._function(self._inputs)
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given.detach())
        if self._graph is None:
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, pool=self._pool):
                self._outputs = self._function(self._inputs)
        self._graph.replay()
        return self._outputs
