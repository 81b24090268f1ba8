"""Finds the first value of an engine that leaves its tolerance."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from vidc.compiler.debug.reference import Reference
from vidc.compiler.validate.metrics import compare

AT_ONCE = 64
"""Values that are looked at in one run, for which an engine may have to be built."""


class Part(Protocol):
    """What of an engine lies between some of its values and one."""

    @property
    def nodes(self) -> int:
        """How many operations it has."""

    def value(self, given: Mapping[str, Tensor]) -> Tensor:
        """What an engine of it alone computes.

        Args:
            given: the values that it begins at.
        """

    def save(
        self, path: Path, given: Mapping[str, Tensor], results: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Writes it as ONNX, weights inside.

        Args:
            path: of the file.
            given: the values that it begins at, but for the component's own.
            results: values for what it computes, by any names.

        Returns:
            What it takes, by the names of its inputs, and ``results``, as the graph lays them out.
        """


class Values(Protocol):
    """An engine whose values can be looked at. A result goes by its name in the signature."""

    @property
    def names(self) -> Sequence[str]:
        """The floating-point values, in the order they are computed."""

    @property
    def cuts(self) -> Collection[str]:
        """Those of ``names`` that a part may begin at."""

    @property
    def inputs(self) -> Collection[str]:
        """What the engine is given besides weights."""

    def results(self) -> dict[str, Tensor]:
        """What the bundle's engine returns, on the CPU."""

    def sources(self, name: str) -> Collection[str]:
        """What a value is computed from at once, itself among ``names`` or not."""

    def operator(self, name: str) -> str:
        """The operator that gives a value, and the name of its node."""

    def values(self, names: Collection[str]) -> dict[str, Tensor]:
        """Some of ``names`` on the CPU, as the engine computes them once they are outputs."""

    def part(self, inputs: Sequence[str], output: str) -> Part:
        """What lies between these values, of ``cuts`` or of ``inputs``, and one of ``names``."""


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
        fused: whether it is right once other values before it are outputs, too.
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
    """The value whose relative L2 is above a limit, while those it is computed from are below.

    Of what the results are computed from, ``AT_ONCE`` values are looked at that are spread evenly,
    then of what the first wrong one is computed from, back to right ones, and so on. Values that
    the two do not share, such as those of an operator that PyTorch has as one and ONNX as several,
    are passed over.

    Args:
        engine: what computes them.
        reference: of its component.
        results: that are wrong.
        limit: of relative L2.

    Returns:
        None where each is right once it is an output.
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
        # Outputs too, so that what is wrong is wrong apart from what it is computed from.
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
            if first in right:  # With other values as outputs it was.
                return replace(found, right=tuple(n for n in right if n != first), fused=True)
        right |= dict.fromkeys(n for n, e in errors.items() if e is not None and e <= limit)


def cut(engine: Values, name: str, known: Collection[str], depth: int) -> list[str]:
    """Where to cut an engine before a value, and what of its inputs lies before the cut.

    Args:
        engine: it.
        name: of the value.
        known: values that may be cut at, as far as they are ``cuts``.
        depth: at how many of them, from the value back, the cut comes.
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
    """Relative L2; infinities that both sides have, such as those of a mask, do not count."""
    alike = torch.isinf(expected) & (found == expected)
    return compare(found.masked_fill(alike, 0), expected.masked_fill(alike, 0)).relative_l2


def _before(
    engine: Values, wrong: Collection[str], shared: Sequence[str], right: Collection[str]
) -> tuple[list[str], list[str]]:
    """Shared values that these are computed from, themselves included, back to right ones.

    Returns:
        Those, and the right ones.
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
    """Up to ``AT_ONCE`` of these, evenly; the last one among them."""
    count = min(AT_ONCE, len(names))
    return [names[(index + 1) * len(names) // count - 1] for index in range(count)]


def _errors(
    engine: Values, reference: Reference, names: Collection[str]
) -> dict[str, float | None]:
    """The relative L2 of each of these values; None where their shapes differ."""
    found, expected = engine.values(names), reference.values(names)
    return {
        name: relative_error(found[name], expected[name])
        if found[name].shape == expected[name].shape
        else None
        for name in names
    }
