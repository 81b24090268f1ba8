"""Writes the smallest graph that shows a wrong value, what it takes and what it should give."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
import onnxruntime
from safetensors.torch import save_file
from torch import Tensor

from vidc.compiler.bisect.graph import EngineGraph, run
from vidc.compiler.bisect.reference import Reference
from vidc.compiler.bisect.search import Finding, relative_error

MOST_DEPTH = 64
"""Known values that the largest part spans."""


@dataclass(frozen=True)
class Reproduction:
    """A part of a graph that stands alone.

    Attributes:
        graph: the ``.onnx`` file, weights inside.
        tensors: its inputs, and ``expected``, as safetensors.
        nodes: how many it has.
        error: of its output against PyTorch's, relative L2.
        inputs: their names.
    """

    graph: Path
    tensors: Path
    nodes: int
    error: float
    inputs: tuple[str, ...]


def reproduce(
    finding: Finding,
    graph: EngineGraph,
    reference: Reference,
    given: Mapping[str, Tensor],
    options: onnxruntime.SessionOptions,
    folder: Path,
) -> Reproduction | None:
    """The smallest part before a wrong value that gives it from right inputs, written to a folder.

    None where no part does: the error then needs more of the graph than ``MOST_DEPTH`` values.

    Args:
        finding: the wrong value.
        graph: of the engine.
        reference: of its component.
        given: as in ``first_wrong``.
        options: those that the engine's own session has.
        folder: an existing one.
    """
    expected = reference.values([finding.name], given)[finding.name]
    depth = 1
    while depth <= MOST_DEPTH:
        inputs = graph.before(finding.name, finding.right, depth)
        part = graph.part(inputs, finding.name)
        known = [name for name in inputs if name in reference.names]
        values = reference.values(known, given)
        values |= {name: given[name] for name in inputs if name not in values}
        found = run(part.SerializeToString(), options, [finding.name], values)[finding.name]
        error = relative_error(found, expected)
        if not error <= finding.limit:
            file = folder / f"{part.graph.name.partition(' ')[0]}.onnx"
            onnx.save(part, file)
            tensors = file.with_suffix(".safetensors")
            contents = {**values, "expected": expected}
            save_file({name: value.contiguous() for name, value in contents.items()}, tensors)
            return Reproduction(file, tensors, len(part.graph.node), error, tuple(inputs))
        depth *= 2
    return None
