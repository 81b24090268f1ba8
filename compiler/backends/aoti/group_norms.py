"""GroupNorm, and SiLU after it, by an operator that reads and writes channels last.

On a GPU, convolutions work channels last. Inductor's statistics of a group then read a few
neighboring channels of each pixel, a fraction of a memory transaction; the operator's threads read
whole pixels (``docs/evidence/svd.md``). A vector that is added to every pixel before the norm, such
as the bias of a convolution, is added by the operator: it would cost a pass over memory otherwise.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.exporters.lowering import insert
from vidc.plugins.errors import UsageError
from vidc.plugins.ops.group_norm_silu import group_norm_silu

aten = torch.ops.aten
OPERATOR = "group_norm_silu"
LEAST_ELEMENTS = 2**22
"""Smallest tensor whose norm is rewritten. Smaller ones stay in the GPU's cache, and inductor may
normalize them in one kernel."""
_BIAS = 2
"""Index of the argument of ``conv2d``."""


def fused_operators(program: ExportedProgram) -> tuple[str, ...]:
    """Returns the names of the operators that ``use_group_norms`` calls if sizes fit."""
    return (OPERATOR,) if any(_norms(program)) else ()


def use_group_norms(program: ExportedProgram) -> tuple[str, ...]:
    """Replaces GroupNorms of 16-bit tensors, in place, unless no kernel supports their sizes.

    Returns:
        Names of the operators that the program calls for them.
    """
    found = [norm.replace(program.graph) for norm in _norms(program)]
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return (OPERATOR,) if any(found) else ()


@dataclass(frozen=True)
class _GroupNorm:
    """A GroupNorm of a graph.

    Attributes:
        node: the call of ``group_norm``, or of ``silu`` after it.
        x: its input without ``shifts``, ``[N, C, ...]``.
        shifts: vectors that are added to every pixel before, each with C elements.
        parameters: weight and bias, ``[C]`` each.
        groups: number of groups.
        eps: added to the variance.
    """

    node: fx.Node
    x: fx.Node
    shifts: tuple[fx.Node, ...]
    parameters: tuple[fx.Node, fx.Node]
    groups: int
    eps: float

    @classmethod
    def of(cls, node: fx.Node) -> "_GroupNorm | None":
        """Reads a call; returns None if it is small, without weights or not in 16 bits."""
        given: list[Any] = [*node.args, *(None, None, 1e-5)[len(node.args) - 2 :]]
        x, groups, weight, bias, eps, *_ = given
        dtype = node.meta["val"].dtype
        if weight is None or bias is None or dtype not in (torch.float16, torch.bfloat16):
            return None
        if node.meta["val"].numel() < LEAST_ELEMENTS:
            return None
        if any(each.meta["val"].dtype is not dtype for each in (weight, bias)):
            return None
        users = list(node.users)
        after = len(users) == 1 and users[0].target is aten.silu.default
        x, shifts = _without_shifts(x)
        return cls(users[0] if after else node, x, shifts, (weight, bias), groups, eps)

    def replace(self, graph: fx.Graph) -> bool:
        """Calls the operator; returns False if no kernel supports the sizes."""
        silu = self.node.target is aten.silu.default

        def call(x: Tensor, weight: Tensor, bias: Tensor, *shifts: Tensor) -> Tensor:
            # A convolution's result is channels last already: nothing is copied.
            pixels = x.movedim(1, -1).contiguous()
            vectors = [each.flatten().float() for each in shifts]
            result: Tensor = group_norm_silu(
                pixels.flatten(1, -2),
                functools.reduce(torch.add, vectors) if vectors else None,
                weight, bias, self.groups, self.eps, silu,
            )  # fmt: skip
            return result.view(pixels.shape).movedim(-1, 1)

        biases = self._convolution_biases()
        with graph.inserting_before(self.node):
            try:
                given = [self.x, *self.parameters, *self.shifts, *biases]
                result = insert(graph, call, given)
            except UsageError:
                return False
        for _ in biases:
            self.x.update_arg(_BIAS, None)
        self.node.replace_all_uses_with(result)
        graph.erase_node(self.node)
        return True

    def _convolution_biases(self) -> Sequence[fx.Node]:
        """Returns the bias of the convolution before, if nothing else reads its result."""
        x: Any = self.x
        if x.target is not aten.conv2d.default or len(x.users) > 1 or len(x.args) <= _BIAS:
            return ()
        return () if x.args[_BIAS] is None else (x.args[_BIAS],)


def _norms(program: ExportedProgram) -> Iterator[_GroupNorm]:
    for node in program.graph.find_nodes(op="call_function", target=aten.group_norm.default):
        if (norm := _GroupNorm.of(node)) is not None:
            yield norm


def _without_shifts(x: fx.Node) -> tuple[fx.Node, tuple[fx.Node, ...]]:
    """Splits the sum of a tensor and a vector for all pixels; returns ``x`` alone for others."""
    if x.target is not aten.add.Tensor or len(x.users) > 1 or x.kwargs:
        return x, ()
    operands: Any = x.args
    whole = x.meta["val"].shape
    for source, vector in (operands, operands[::-1]):
        if not isinstance(source, fx.Node) or not isinstance(vector, fx.Node):
            continue
        if source.meta["val"].shape == whole and vector.meta["val"].shape == (
            1, whole[1], *[1] * (len(whole) - 2),
        ):  # fmt: skip
            return source, (vector,)
    return x, ()
