"""Search for the first value of an engine that exceeds its tolerance."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vidc.compiler.debug.reference import Reference
from vidc.compiler.validate.metrics import compare

AT_ONCE = 64
"""Values compared in one run, which may have to rebuild the engine."""


class Part(Protocol):
    """Part of an engine between some values and one result."""

    @property
    def nodes(self) -> int:
        """Number of operations."""

    def value(self, given: Mapping[str, Tensor]) -> Tensor:
        """Computes the output with an engine of this part alone.

        Args:
            given: values that it begins at.
        """

    def save(
        self, path: Path, given: Mapping[str, Tensor], results: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Writes the part as ONNX with its weights inside.

        Args:
            path: file to write.
            given: values that it begins at, except the component's inputs.
            results: values of its output by any names.

        Returns:
            Inputs by name and ``results``, in the graph's layout.
        """


class Values(Protocol):
    """Engine with readable intermediate values. Its outputs have their names in the signature."""

    @property
    def names(self) -> Sequence[str]:
        """Floating-point values in the order of computation."""

    @property
    def cuts(self) -> Collection[str]:
        """Names that a part may begin at."""

    @property
    def inputs(self) -> Collection[str]:
        """Inputs of the engine besides weights."""

    def results(self) -> dict[str, Tensor]:
        """Returns the outputs of the bundle's engine on the CPU."""

    def sources(self, name: str) -> Collection[str]:
        """Returns the direct inputs of a value, in ``names`` or not."""

    def operator(self, name: str) -> str:
        """Returns the operator that computes a value, and the name of its node."""

    def values(self, names: Collection[str]) -> dict[str, Tensor]:
        """Computes some of ``names`` as outputs of the engine, on the CPU."""

    def part(self, inputs: Sequence[str], output: str) -> Part:
        """Extracts the part between values of ``cuts`` or ``inputs`` and one of ``names``."""


@dataclass(frozen=True)
class Finding:
    """First value that differs.

    Attributes:
        name: name of the value.
        operator: operator that computes it, with the name of its node.
        error: relative L2 against PyTorch in the engine's precision.
        limit: tolerance that it exceeds.
        line: Python line that it comes from, if known.
        right: earlier values within the tolerance.
        fused: True if it is right once earlier values are outputs too.
    """

    name: str
    operator: str
    error: float
    limit: float
    line: str | None
    right: tuple[str, ...]
    fused: bool = False


def first_wrong(
    engine: Values, reference: Reference, results: Collection[str], limit: float
) -> Finding | None:
    """Finds a value whose relative L2 exceeds a limit while its inputs are within it.

    Compares ``AT_ONCE`` evenly spread values among those that the results depend on. Then it does
    the same among the values between the first wrong one and the right ones before it, and so on.
    Values that only one side has are skipped, such as those inside an operator that ONNX splits.

    Args:
        engine: values of the engine.
        reference: values of PyTorch.
        results: wrong results.
        limit: largest relative L2.

    Returns:
        The value; None if each is right once it is an output.
    """
    shared = [name for name in engine.names if name in reference.names]
    right: dict[str, None] = {}
    found: Finding | None = None
    asked: set[str] = set()
    while True:
        suspects, edge = _before(engine, results if found is None else [found.name], shared, right)
        if not suspects:
            return None if found is None else replace(found, right=tuple(right), fused=True)
        chosen = _spread(suspects)
        # Right values are outputs as well, so that fusion cannot have caused the error.
        names = [*edge[: AT_ONCE - len(chosen)], *chosen]
        if found is not None and suspects == [found.name] and asked.issuperset(names):
            return replace(found, right=tuple(right))
        errors = _errors(engine, reference, names)
        shared = [name for name in shared if errors.get(name, 0) is not None]
        wrong = [(name, e) for name, e in errors.items() if e is not None and not e <= limit]
        if wrong:
            (first, error), asked = wrong[0], set(names)
            operator, line = engine.operator(first), reference.line(first)
            found = Finding(first, operator, error, limit, line, tuple(right))
            if first in right:  # It was right with other values as outputs.
                return replace(found, right=tuple(n for n in right if n != first), fused=True)
        right |= dict.fromkeys(n for n, e in errors.items() if e is not None and e <= limit)


def cut(engine: Values, name: str, known: Collection[str], depth: int) -> list[str]:
    """Returns the values from which a part of an engine computes one value.

    Searches backward from the value, and stops each path at an input of the engine or at its
    ``depth``-th known value.

    Args:
        engine: values of the engine.
        name: name of the computed value.
        known: values to cut at; those outside ``engine.cuts`` are ignored.
        depth: number of known values on each path, the cut included.
    """
    known = set(known) & set(engine.cuts)
    found, seen = [], {name}
    todo = [(source, depth) for source in engine.sources(name)]
    while todo:
        value, left = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        left -= value in known
        if value in engine.inputs or left == 0:
            found.append(value)
        else:
            todo += [(source, left) for source in engine.sources(value)]
    return found


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Returns relative L2; equal infinities, as in a mask, do not count."""
    alike = torch.isinf(expected) & (found == expected)
    return compare(found.masked_fill(alike, 0), expected.masked_fill(alike, 0)).relative_l2


def _before(
    engine: Values, wrong: Collection[str], shared: Sequence[str], right: Collection[str]
) -> tuple[list[str], list[str]]:
    """Returns the wrong values and their ancestors up to right values, and these right values.

    Both lists hold only names in ``shared``, in its order.
    """
    seen, edge, todo = set[str](), set[str](), [*wrong]
    while todo:
        name = todo.pop()
        if name in right:
            edge.add(name)
        elif name not in seen:
            seen.add(name)
            todo += engine.sources(name)
    return [name for name in shared if name in seen], [name for name in shared if name in edge]


def _spread(names: Sequence[str]) -> list[str]:
    """Returns up to ``AT_ONCE`` of these, evenly spaced and with the last one."""
    count = min(AT_ONCE, len(names))
    return [names[(index + 1) * len(names) // count - 1] for index in range(count)]


def _errors(
    engine: Values, reference: Reference, names: Collection[str]
) -> dict[str, float | None]:
    """Returns the relative L2 of each value; None if shapes differ."""
    found, expected = engine.values(names), reference.values(names)
    return {
        name: relative_error(found[name], expected[name])
        if found[name].shape == expected[name].shape
        else None
        for name in names
    }
