"""Products in 8 bits as a GPU computes them, in place of calls of ``vidc::quantized_linear``.

Where the input is quantized too, the product is ``torch._scaled_mm``. On a Hopper GPU that takes
either one scale for each operand, or one for each row of the input and each output channel. The
second it is: recipes mean a scale for each output channel, and over a layer's products at
LongLive's sizes it costs 4 % of their time (314 us instead of 302 on an H200). The input's scale is
one number and part of the output channels', so that all products of as many rows share ones for
their rows; both are in the weights file as they are read. Where a recipe has a scale for each
token, rows have these, computed by the operations that round them. A weight as it is stored,
``[out, in]``, is the column-major operand that the product wants. Where the input stays as it is, a
kernel of the compiler's makes the weight one of 16 bits, and what is saved is memory.

An input is quantized by what makes it: GELU by ``gelu_quantize``, which then writes FP8, and
anything else by operations that the compiler fuses with those before: gate, residual, norm,
modulation and rounding to FP8 are one kernel.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.compiler.quantize.programs import ARGUMENTS, found_linears, is_dynamic
from vidc.exporters.lowering import insert
from vidc.exporters.program import weight_names
from vidc.plugins.arguments import dtype_name
from vidc.plugins.errors import BuildError
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.quantized_linear import (
    dequantized_linear,
    quantized_input,
    quantized_linear,
    quantized_tokens,
)

_SCALED = torch.ops.aten._scaled_mm.default
_FULL = torch.ops.aten.full.default
_TRANSPOSES = (torch.ops.aten.t.default, torch.ops.aten.permute.default)
_FP8 = torch.float8_e4m3fn


def lower_products(program: ExportedProgram) -> None:
    """Opens up every call of ``vidc::quantized_linear``.

    Args:
        program: with these calls; changed in place.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT``, not every weight in 8 bits is read as it was meant.
    """
    asked = {linear.weight: linear.computes for linear in found_linears(program)}
    products = _Products(program.graph)
    for node in program.graph.find_nodes(op="call_function", target=quantized_linear):
        products.replace(node)
    program.graph_module.recompile()
    _require_same(asked, found_products(program))


def found_products(program: ExportedProgram) -> dict[str, bool]:
    """The weights in 8 bits that a program reads, and whether their products are in 8 bits too.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT``, one is read by several operations.
    """
    names, found = weight_names(program), {}
    for placeholder in program.graph.find_nodes(op="placeholder"):
        name = names.get(placeholder.name)
        if name is None or placeholder.meta["val"].dtype not in (_FP8, torch.int8):
            continue
        users, read = tuple(placeholder.users), placeholder
        if not users:
            continue  # Another component's.
        while len(users) == 1 and users[0].target in _TRANSPOSES:
            read, users = users[0], tuple(users[0].users)
        if len(users) != 1:
            raise _differ(f"{name} is read by {len(users)} operations")
        found[name] = users[0].target is _SCALED and users[0].args[1] is read
    return found


class _Products:
    """A graph while its products are lowered."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        self._steps: dict[tuple[Any, ...], fx.Node] = {}
        self._tokens: dict[tuple[Any, ...], tuple[fx.Node, fx.Node]] = {}
        self._ones: dict[int, fx.Node] = {}

    def replace(self, node: fx.Node) -> None:
        """Puts operations in the place of one call."""
        x, weight, scale, bias, input_scale, *before = node.args[:ARGUMENTS]
        value = node.meta["val"]
        with self.graph.inserting_before(node):
            if is_dynamic(node):
                steps, tokens = self._by_token(x, weight, *before)
                arguments = (steps, weight, scale, bias, tokens, value.dtype)
                result = insert(self.graph, scaled_product, arguments)
            elif input_scale is None:
                result = insert(self.graph, dequantized_linear, (x, weight, scale, bias))
            else:
                steps = self._quantized(x, weight, input_scale, *before)
                ones = self._ones_for(value.numel() // value.shape[-1], value)
                arguments = (steps, weight, scale, bias, ones, value.dtype)
                result = insert(self.graph, scaled_product, arguments)
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)
        if isinstance(x, fx.Node) and x.target is gelu_quantize and not x.users:
            self.graph.erase_node(x)

    def _quantized(self, x: Any, weight: Any, scale: Any, factor: Any, mean: Any) -> fx.Node:
        """The input in 8 bits, which Linears that share its scale share."""
        key = (x, scale, factor, mean)
        if key not in self._steps:
            dtype = weight.meta["val"].dtype
            fits = factor is None and dtype is _FP8
            if x.target is gelu_quantize and fits and _alone(x, scale, mean):
                given = (x.args[0], dtype_name(_FP8), scale, mean)
                self._steps[key] = insert(self.graph, gelu_quantize, given)
            else:
                arguments = (x, scale, factor, mean, dtype)
                self._steps[key] = insert(self.graph, quantized_input, arguments)
        return self._steps[key]

    def _by_token(self, x: Any, weight: Any, factor: Any, mean: Any) -> tuple[fx.Node, fx.Node]:
        """The input in 8 bits and its tokens' scales, which Linears that read it share."""
        key = (x, factor, mean)
        if key not in self._tokens:
            arguments = (x, factor, mean, weight.meta["val"].dtype)
            steps, scales = insert(self.graph, quantized_tokens, arguments)
            self._tokens[key] = steps, scales
        return self._tokens[key]

    def _ones_for(self, rows: int, like: Any) -> fx.Node:
        """Scales of rows that are part of the output channels', made once for all products."""
        if rows not in self._ones:
            first = next(node for node in self.graph.nodes if node.op != "placeholder")
            options = {"dtype": torch.float32, "device": like.device, "pin_memory": False}
            with self.graph.inserting_before(first), like.fake_mode:
                made = self.graph.call_function(_FULL, ([rows, 1], 1.0), options)
                made.meta["val"] = _FULL([rows, 1], 1.0, **options)
            self._ones[rows] = made
        return self._ones[rows]


def scaled_product(
    steps: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, of_rows: Tensor, dtype: Any
) -> Tensor:
    """The product of quantized operands.

    Args:
        steps: float8_e4m3fn ``[..., in]``.
        weight: float8_e4m3fn ``[out, in]``.
        scale: of each output channel of the product, float32 ``[out]``.
        bias: ``[out]`` of ``dtype``, or None.
        of_rows: the scale of each row, float32 ``[..., 1]``: ones where it is part of ``scale``.
        dtype: of the result, ``[..., out]``.
    """
    rows = steps.reshape(-1, steps.shape[-1])
    scales = of_rows if of_rows.ndim == 2 else of_rows.reshape(-1, 1)
    # Sums of the matrix units as they are: errors of rounding inputs to FP8 are larger by far.
    product = torch._scaled_mm(
        rows, weight.t(), scales, scale[None], bias=bias, out_dtype=dtype, use_fast_accum=True
    )
    return product.reshape(*steps.shape[:-1], weight.shape[0])


def _alone(x: fx.Node, scale: Any, mean: Any) -> bool:
    """Whether all that read an input quantize it by this scale and mean and nothing else."""
    return all(
        user.target is quantized_linear
        and user.args[0] is x
        and user.args[4:ARGUMENTS] == (scale, None, mean)
        for user in x.users
    )


def _require_same(asked: Mapping[str, bool], found: Mapping[str, bool]) -> None:
    differ: Sequence[str] = [n for n in {**asked, **found} if asked.get(n) is not found.get(n)]
    if differ:
        raise _differ(
            f"{sum(asked.values())} products in 8 bits and {len(asked)} weights are asked for, "
            f"there are {sum(found.values())} and {len(found)}; the first difference is {differ[0]}"
        )


def _differ(what: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-COUNT",
        f"the program for the GPU is not the quantized one: {what}",
        "report it with this message; a recipe that leaves the layer out builds",
    )
