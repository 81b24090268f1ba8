"""Pass that computes float16 convolutions over three frames by Winograd's algorithm in time.

``winograd_convolution`` has the arithmetic, ``docs/evidence/kernels.md`` the error that it adds.
Convolutions in other dtypes are left as they are. Between two such convolutions, the operator
``norm_silu_winograd`` computes the output transform of the first, the bias, residual, norm and
SiLU after it, and the input transform of the second.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.compiler.backends.aoti.convolution_forms import Choose, Sizes, by_rule, candidates
from vidc.compiler.backends.aoti.winograd_convolution import (
    LEAST_CHANNELS,
    convolution_inputs,
    convolution_output,
    is_narrow,
    winograd_products,
)
from vidc.exporters.lowering import insert
from vidc.plugins.ops.norm_silu_winograd import CHANNELS, norm_silu_winograd

aten = torch.ops.aten
OPERATOR = "norm_silu_winograd"
_PRODUCTS = 6
"""Number of the operator's arguments that take products."""
_PASSED = (aten.clone.default, aten._to_copy.default)
"""Operations that copy or cast a tensor."""


def fused_operators(program: ExportedProgram) -> tuple[str, ...]:
    """Returns the names of the operators that ``use_winograd`` calls if ``fused`` is True."""
    found = _convolutions(program)
    return (OPERATOR,) if any(map(_NormSilu.before, found)) else ()


def use_winograd(
    program: ExportedProgram, fused: bool, choose: Choose = by_rule
) -> tuple[str, ...]:
    """Rewrites convolutions over three frames in float16, in place.

    Args:
        program: an exported program.
        fused: True to call ``norm_silu_winograd`` between them, whose kernel must be installed.
        choose: chooses the form of each.

    Returns:
        Names of the fused operators that the program calls.
    """
    rewriter = _Rewriter(program.graph, fused, choose)
    for convolution in _convolutions(program):
        rewriter.rewrite(convolution)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return (OPERATOR,) if rewriter.fusions else ()


def _convolutions(program: ExportedProgram) -> "Iterator[_Convolution]":
    """Yields the convolutions of a program that have several forms, in order.

    A convolution may read the result of an earlier one. So each is looked at only when the caller
    asks for it, after it may have rewritten the earlier ones.
    """
    for node in program.graph.find_nodes(op="call_function", target=aten.conv3d.default):
        found = _Convolution.of(node)
        if found is not None:
            yield found


@dataclass(frozen=True)
class _Convolution:
    """A call of ``conv3d`` that has several forms.

    Attributes:
        node: the call of ``conv3d``.
        x: its input without the padding of height and width.
        weight: ``[N, C, 3, 3, 3]``.
        bias: ``[N]``, or None.
        pads: zeros on the left, right, top and bottom of ``x``.
    """

    node: fx.Node
    x: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    pads: tuple[int, ...]

    @classmethod
    def of(cls, node: fx.Node) -> "_Convolution | None":
        """Reads a call of ``conv3d``; returns None if it has no other form."""
        given: list[Any] = [*node.args, *_DEFAULTS[len(node.args) :]]
        x, weight, bias, stride, padding, dilation, groups = given
        plain = all(each == 1 for each in (*stride, *dilation, groups)) and not any(padding)
        result = node.meta["val"]
        outputs, inputs, *kernel = weight.meta["val"].shape
        if (
            not plain
            or result.dtype is not torch.float16
            or kernel != [3, 3, 3]
            or inputs < LEAST_CHANNELS
            or (outputs < LEAST_CHANNELS and not is_narrow(outputs, inputs))
        ):
            return None
        pads: tuple[int, ...] = (0, 0, 0, 0)
        if x.target is aten.pad.default and len(x.args) == 2 and not any(x.args[1][4:]):
            pads, x = tuple(x.args[1][:4]), x.args[0]
        found = cls(node, x, weight, bias, pads)
        return found if len(candidates(found.sizes(operator=True))) > 1 else None

    def sizes(self, operator: bool) -> Sizes:
        """Returns its sizes; ``operator`` as their field."""
        batch, outputs, frames, height, width = self.node.meta["val"].shape
        inputs = self.weight.meta["val"].shape[1]
        return Sizes(inputs, outputs, frames, height, width, batch, operator=operator)


_DEFAULTS: tuple[Any, ...] = (None, None, None, (1, 1, 1), (0, 0, 0), (1, 1, 1), 1)
"""Defaults of the arguments of ``conv3d``; None where there is none."""


@dataclass(frozen=True)
class _NormSilu:
    """RMSNorm over channels and SiLU before a convolution that also takes two earlier frames.

    Attributes:
        value: the input of the norm, ``[B, C, T, H, W]``.
        gamma: the norm's weight, ``[C, 1, 1, 1]``.
        past: activations of the two frames before this call's, ``[B, C, 2, H, W]``.
        silu: the activations.
        last: nodes of this call's last two activations, which the next call takes as ``past``.
        keep_value: True if other nodes than those of the norm read ``value``.
    """

    value: fx.Node
    gamma: fx.Node
    past: fx.Node
    silu: fx.Node
    last: tuple[fx.Node, ...]
    keep_value: bool

    @classmethod
    def before(cls, convolution: _Convolution) -> "_NormSilu | None":
        """Reads the norm, SiLU and concatenation before a convolution; None without them."""
        cat = convolution.x
        if cat.target is not aten.cat.default or len(cat.args) < 2 or cat.args[1] != 2:
            return None
        nodes: Any = cat.args[0]
        if len(nodes) != 2 or nodes[0].meta["val"].shape[2] != 2:
            return None
        past, activation = nodes
        silu, read = _passed(activation)
        if silu.target is not aten.silu.default:
            return None
        last = []
        for user in {user for node in (silu, *read) for user in node.users} - {cat, *read}:
            if user.target is not aten.slice.Tensor or user.args[1:3] != (2, -2):
                return None
            last.append(user)
        found = _normalized(silu.args[0])
        if found is None:
            return None
        value, gamma, nodes = found
        whole = value.meta["val"]
        if whole.dtype is not torch.float16 or whole.shape[1] not in CHANNELS:
            return None
        readers = {user for node in (value, *nodes) for user in node.users}
        return cls(value, gamma, past, silu, tuple(last), not readers <= {*nodes, silu})


def _passed(node: Any) -> tuple[Any, list[Any]]:
    """Returns the source of a row of copies and casts, and the nodes of that row."""
    passed = []
    while isinstance(node, fx.Node) and node.target in _PASSED:
        passed.append(node)
        node = node.args[0]
    return node, passed


def _normalized(node: Any) -> tuple[fx.Node, fx.Node, list[fx.Node]] | None:
    """Returns input, weight and nodes of a norm as diffusers' ``WanRMS_norm`` is exported.

    Returns None if ``node`` is not the result of one.
    """
    nodes = [node]
    if node.target is aten.add.Tensor and node.args[1] == 0.0:
        nodes.append(node := node.args[0])
    if node.target is not aten.mul.Tensor or not isinstance(node.args[1], fx.Node):
        return None
    scaled, gamma = node.args
    channels = gamma.meta["val"].numel()
    if scaled.target is not aten.mul.Tensor or scaled.args[1] != channels**0.5:
        return None
    divided, copies = _passed(scaled.args[0])
    if divided.target is not aten.div.Tensor:
        return None
    nodes += [scaled, *copies, divided]
    value, norm = divided.args
    for target, rest in (
        (aten.expand.default, None),
        (aten.clamp_min.default, (1e-12,)),
        (aten.linalg_vector_norm.default, (2.0, [1], True)),
    ):
        if norm.target is not target or (rest is not None and norm.args[1:] != rest):
            return None
        nodes.append(norm)
        norm = norm.args[0]
    source, copies = _passed(value)
    return (source, gamma, nodes + copies) if norm is value else None


@dataclass
class _Rewriter:
    """Rewrites the convolutions of one graph, in order.

    Attributes:
        graph: the graph.
        fused: True to call ``norm_silu_winograd`` between convolutions.
        choose: chooses the form of each.
        products: by the result of each rewritten convolution, its products and its bias.
        fusions: number of calls of the operator.
    """

    graph: fx.Graph
    fused: bool
    choose: Choose
    products: dict[fx.Node, tuple[list[fx.Node], fx.Node | None]] = field(default_factory=dict)
    fusions: int = 0

    def rewrite(self, convolution: _Convolution) -> None:
        """Replaces a call of ``conv3d`` by input transform, products and output transform.

        Leaves the call as it is if ``conv3d`` is the chosen form.
        """
        node, pads, bias = convolution.node, convolution.pads, convolution.bias
        norm = _NormSilu.before(convolution) if self.fused else None
        tile = self.choose(convolution.sizes(operator=norm is not None)).tile
        if tile is None:
            return
        if norm is None:
            with self.graph.inserting_before(node):
                inputs = insert(self.graph, convolution_inputs, [convolution.x, tile])
        else:
            inputs = self._fuse(norm, tile)

        def multiply(weight: Tensor, *frames: Tensor) -> tuple[Tensor, ...]:
            return winograd_products(frames, weight, pads)

        def combine(*given: Tensor) -> Tensor:
            bias = given[-1] if len(given) > len(inputs) else None
            return convolution_output(given[: len(inputs)], bias, batch)

        batch = node.meta["val"].shape[0]
        with self.graph.inserting_before(node):
            products = list(insert(self.graph, multiply, [convolution.weight, *inputs]))
            given = [*products] if bias is None else [*products, bias]
            result = insert(self.graph, combine, given)
        self.products[result] = (products, bias)
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)

    def _fuse(self, norm: _NormSilu, tile: int) -> list[fx.Node]:
        """Replaces a norm by a call of the operator; returns the transformed inputs after it.

        If a convolution with the same m made the norm's input, the operator takes its products and
        computes the output transform. Otherwise it takes the frames.
        """
        value, residual, products = norm.value, None, None
        if self._has_tile(value, tile):
            products = self.products[value]
        elif value.target is aten.add.Tensor and len(value.args) == 2 and not value.kwargs:
            operands: Any = value.args
            for convolved, other in (operands, operands[::-1]):
                if self._has_tile(convolved, tile) and _like(other, value):
                    products, residual = self.products[convolved], other
        sources, bias = ([value], None) if products is None else products
        optional = [node for node in (bias, residual) if node is not None]
        keep_sum = products is not None and norm.keep_value

        def call(gamma: Tensor, past: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
            # Products and sums of an earlier call are channels last already: nothing is copied.
            x = [each.movedim(1, -1).contiguous() for each in rest[: len(sources)]]
            others = iter(rest[len(sources) :])
            inputs, last, total = norm_silu_winograd(
                *x,
                *[None] * (_PRODUCTS - len(x)),
                None if bias is None else next(others),
                None if residual is None else next(others).movedim(1, -1).contiguous(),
                gamma.flatten(),
                past.movedim(1, -1).contiguous(),
                tile,
                keep_sum,
            )
            made = (*inputs.unbind(), *((total,) if keep_sum else ()), last)
            return tuple(each.movedim(-1, 1) for each in made)

        # The alias marks the place of the call. A kept sum replaces ``value``, so the call comes
        # before all readers of ``value``. Without products it comes after ``silu``, because
        # ``past`` may be computed after ``value``.
        with self.graph.inserting_after(norm.silu if products is None else value):
            anchor = self.graph.call_function(aten.alias.default, (value,))
        with self.graph.inserting_before(anchor):
            given = [norm.gamma, norm.past, *sources, *optional]
            inputs: list[fx.Node] = list(insert(self.graph, call, given))
        self.graph.erase_node(anchor)
        last = inputs.pop()
        if keep_sum:
            value.replace_all_uses_with(inputs.pop())
        for node in norm.last:
            node.replace_all_uses_with(last)
        self.fusions += 1
        return inputs

    def _has_tile(self, node: fx.Node, tile: int) -> bool:
        """Returns True if a node is the result of a convolution that was rewritten with a tile."""
        return node in self.products and len(self.products[node][0]) == tile + 2


def _like(node: Any, other: fx.Node) -> bool:
    """Returns True if ``node`` is a node with the shape and dtype of ``other``."""
    if not isinstance(node, fx.Node):
        return False
    a, b = node.meta["val"], other.meta["val"]
    return bool(a.shape == b.shape and a.dtype == b.dtype)
