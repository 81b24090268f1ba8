"""Writes a minimal ONNX reproducer with its inputs and expected output."""

from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file

from vidc.compiler.debug.reference import Reference
from vidc.compiler.debug.search import Finding, Values, cut, relative_error

MOST_DEPTH = 64
"""Largest ``depth`` of a part, as in ``cut``."""


@dataclass(frozen=True)
class Reproduction:
    """Minimal reproducer of a wrong value.

    Attributes:
        graph: ``.onnx`` file with weights inside.
        tensors: safetensors file with the graph's inputs by name, PyTorch's output as ``expected``
            and the engine's output as ``found``.
        nodes: number of operations in the engine's program.
        error: relative L2 of its output against PyTorch's.
        inputs: names of the inputs.
    """

    graph: Path
    tensors: Path
    nodes: int
    error: float
    inputs: tuple[str, ...]


def reproduce(
    component: str, finding: Finding, engine: Values, reference: Reference, folder: Path
) -> Reproduction | None:
    """Writes a small subgraph that computes a wrong value from right inputs.

    Tries parts that end at the wrong value, each about twice as deep as the one before. Each part
    is built as an engine of its own, as the whole was, and run on PyTorch's values. Returns None if
    parts up to ``MOST_DEPTH`` are right: the error then needs more of the graph.

    Args:
        component: name of the component and of the files.
        finding: wrong value.
        engine: values of the engine.
        reference: values of PyTorch.
        folder: existing folder.
    """
    expected = reference.values([finding.name])[finding.name]
    before: list[str] = []
    depth = 1
    while depth <= MOST_DEPTH:
        inputs = cut(engine, finding.name, finding.right, depth)
        depth *= 2
        if inputs == before:
            continue  # The same part.
        before, part = inputs, engine.part(inputs, finding.name)
        given = reference.values([name for name in inputs if name in engine.cuts])
        found = part.value(given)
        error = relative_error(found, expected)
        if not error <= finding.limit:
            file = folder / f"{component}.onnx"
            contents = part.save(file, given, {"expected": expected, "found": found})
            tensors = file.with_suffix(".safetensors")
            save_file({name: value.contiguous() for name, value in contents.items()}, tensors)
            taken = tuple(name for name in contents if name not in ("expected", "found"))
            return Reproduction(file, tensors, part.nodes, error, taken)
    return None
