"""CUDA graphs of a test's own work."""

from collections.abc import Callable
from typing import Any

import torch


def captured(work: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Runs work, then captures it; returns the graph and the results that a replay writes."""
    work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = work()
    return graph, results
