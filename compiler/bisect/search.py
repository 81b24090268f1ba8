"""Finds the first value of an engine's graph that leaves its tolerance."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from vidc.compiler.bisect.graph import EngineGraph
from vidc.compiler.bisect.reference import Reference
from vidc.compiler.validate.metrics import compare

AT_ONCE = 64
"""Values that are held at a time, from either side."""


@dataclass(frozen=True)
class Finding:
    """The first value that differs.

    Attributes:
        name: of the value.
        operator: that gives it, with the name of its node.
        error: relative L2 against PyTorch in the engine's precision.
        limit: the tolerance that it leaves.
        line: of Python that it comes from, where that is known.
        right: values before it that keep to the tolerance.
    """

    name: str
    operator: str
    error: float
    limit: float
    line: str | None
    right: tuple[str, ...]


def first_wrong(
    graph: EngineGraph, reference: Reference, given: Mapping[str, Tensor], limit: float
) -> Finding | None:
    """The first value, in the order they are computed, whose relative L2 is above a limit.

    None where no value is. Values that the two do not share, such as those of an operator that
    PyTorch has as one and ONNX as several, are passed over.

    Args:
        graph: the engine's.
        reference: of its component.
        given: weights, inputs and states that either of them takes.
        limit: of relative L2.
    """
    right: list[str] = []
    shared = [name for name in graph.floats if name in reference.names]
    for start in range(0, len(shared), AT_ONCE):
        names = shared[start : start + AT_ONCE]
        found, expected = graph.values(names, given), reference.values(names, given)
        for name in names:
            if found[name].shape != expected[name].shape:
                continue
            error = relative_error(found[name], expected[name])
            if not error <= limit:
                line = reference.line(name)
                return Finding(name, graph.operator(name), error, limit, line, tuple(right))
            right.append(name)
    return None


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Relative L2; infinities that both sides have, such as those of a mask, do not count."""
    alike = torch.isinf(expected) & (found == expected)
    return compare(found.masked_fill(alike, 0), expected.masked_fill(alike, 0)).relative_l2
