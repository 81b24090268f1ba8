"""Winograd's F(m, 3) in one dimension: m results of a filter of three taps from m + 2 products.

A direct computation takes 3 m products. The transforms are those of Toom and Cook: they evaluate
polynomials at m + 1 points and at infinity (Blahut, Fast Algorithms for Signal Processing, chapter
5; Lavin and Gray, arXiv 1509.09308). The points are those with the least error in float16 among
simple fractions: 1.2 times that of F(2, 3) for F(3, 3) and 1.6 times for F(4, 3).
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from torch import Tensor

_POINTS = {
    tile: tuple(map(Fraction, points.split()))
    for tile, points in {2: "0 1 -1", 3: "2/5 -2/5 5/4 -5/4", 4: "0 2/3 -2/3 3/2 -3/2"}.items()
}
TILES = tuple(_POINTS)
"""Values of m."""
GROWTH = 4
"""Limit of a transformed input, relative to the largest input."""

Matrix = tuple[tuple[Fraction, ...], ...]


class Transforms(NamedTuple):
    """Matrices of F(m, 3), with a row for each value that they make."""

    inputs: Matrix
    filters: Matrix
    outputs: Matrix


@cache
def transforms(tile: int) -> Transforms:
    """Returns the matrices of F(``tile``, 3).

    Each row for inputs is divided by a power of two that keeps the sum of its absolute values at
    most ``GROWTH``, and the row for filters is multiplied by it.
    """
    points, size = _POINTS[tile], tile + 2
    inputs, filters = [], []
    for point in (*points, None):
        others = [other for other in points if other != point]
        row = _polynomial(others, size)
        taps = [Fraction(0), Fraction(0), Fraction(1)]
        if point is not None:
            divisor = math.prod((point - other for other in others), start=Fraction(1))
            taps = [point**power / divisor for power in range(3)]
        scale = 1
        while sum(map(abs, row)) > GROWTH * scale:
            scale *= 2
        inputs.append(tuple(each / scale for each in row))
        filters.append(tuple(each * scale for each in taps))
    outputs = tuple(
        (*(point**power for point in points), Fraction(power == tile - 1)) for power in range(tile)
    )
    return Transforms(tuple(inputs), tuple(filters), outputs)


def _polynomial(roots: Sequence[Fraction], size: int) -> list[Fraction]:
    """Returns the coefficients of the product of ``x - root``, the constant first."""
    found = [Fraction(1)]
    for root in roots:
        shifted, scaled = [Fraction(0), *found], [*(root * each for each in found), Fraction(0)]
        found = [a - b for a, b in zip(shifted, scaled, strict=True)]
    return found + [Fraction(0)] * (size - len(found))


def input_transform(frames: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the m + 2 inputs of the products, from m + 2 successive values."""
    return _apply(transforms(len(frames) - 2).inputs, frames)


def filter_transform(taps: Sequence[Tensor], tile: int) -> tuple[Tensor, ...]:
    """Returns the m + 2 filters of the products, from three taps."""
    return _apply(transforms(tile).filters, taps)


def output_transform(products: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Returns the m results, from the m + 2 products."""
    return _apply(transforms(len(products) - 2).outputs, products)


def _apply(matrix: Matrix, values: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(_combination(row, values) for row in matrix)


def _combination(row: Sequence[Fraction], values: Sequence[Tensor]) -> Tensor:
    """Returns the sum of values by their factors; a factor of 1 and a zero cost nothing."""
    found: Tensor | None = None
    for factor, value in zip(row, values, strict=True):
        if not factor:
            continue
        if found is None:
            found = value if factor == 1 else value * float(factor)
        elif abs(factor) == 1:
            found = found + value if factor == 1 else found - value
        else:
            found = found + value * float(factor)
    assert found is not None, "a row of a transform has a factor"
    return found
