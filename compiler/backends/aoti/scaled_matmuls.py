"""Lowering of ``vidc::quantized_linear`` to quantized matmuls on a GPU.

A linear layer with a quantized input becomes ``torch._scaled_mm`` with row-wise scales: one for
each row of the input and each output channel. Per-channel weights need them; over a layer's matmuls
at LongLive's sizes they cost 4 % of the time of tensor-wise scales (314 us instead of 302, H200). A
static input scale is folded into the output channels' scales at load, so that all matmuls with the
same number of rows share row scales of one. Per-token scales are the row scales, computed where the
input is quantized. The stored weight, ``[out, in]``, is the column-major operand that the matmul
takes. With a high-precision input, inductor dequantizes the weight, which saves memory only.

The producer of an input quantizes it: ``gelu_quantize`` writes FP8, and other producers are fused
by inductor: gate, residual, norm, modulation and quantization are one kernel.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

from vidc.exporters.lowering import insert
from vidc.exporters.program import LINEAR_TENSORS, is_dynamic, quantized_weights, weight_names
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
_WEIGHT_SCALE, _PRODUCT_SCALE = "weight_scale", "product_scale"


def lower_linears(program: ExportedProgram) -> dict[str, tuple[str, str]]:
    """Replaces every call of ``vidc::quantized_linear``, in place.

    Args:
        program: the quantized program.

    Returns:
        Names of the scales of matmuls with static inputs, with those of the weight's scale and the
        input's, whose product each is.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT``, an 8-bit weight is not read as the recipe says.
    """
    asked = quantized_weights(program)
    matmuls = _Matmuls(program)
    for node in program.graph.find_nodes(op="call_function", target=quantized_linear):
        matmuls.replace(node)
    program.graph_module.recompile()
    _require_same(asked, quantized_matmuls_of(program))
    return matmuls.products


def quantized_matmuls_of(program: ExportedProgram) -> dict[str, bool]:
    """Returns the 8-bit weights that a program reads; True for those of quantized matmuls.

    Raises:
        BuildError: ``VIDC-QUANTIZE-COUNT``, several operations read one.
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


class _Matmuls:
    """Lowering of one graph, with the nodes that linear layers share."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program, self.graph = program, program.graph
        self.products: dict[str, tuple[str, str]] = {}
        self._steps: dict[tuple[Any, ...], fx.Node] = {}
        self._tokens: dict[tuple[Any, ...], tuple[fx.Node, fx.Node]] = {}
        self._ones: dict[int, fx.Node] = {}

    def replace(self, node: fx.Node) -> None:
        """Replaces one call."""
        x, weight, scale, bias, input_scale, *before = node.args[:LINEAR_TENSORS]
        value = node.meta["val"]
        with self.graph.inserting_before(node):
            if is_dynamic(node):
                steps, tokens = self._per_token(x, weight, *before)
                arguments = (steps, weight, scale, bias, tokens, value.dtype)
                result = insert(self.graph, scaled_matmul, arguments)
            elif input_scale is None:
                result = insert(self.graph, dequantized_linear, (x, weight, scale, bias))
            else:
                steps = self._quantized(x, weight, input_scale, *before)
                self._multiply(scale, input_scale)
                ones = self._ones_for(value.numel() // value.shape[-1], value)
                arguments = (steps, weight, scale, bias, ones, value.dtype)
                result = insert(self.graph, scaled_matmul, arguments)
        node.replace_all_uses_with(result)
        self.graph.erase_node(node)
        if isinstance(x, fx.Node) and x.target is gelu_quantize and not x.users:
            self.graph.erase_node(x)

    def _quantized(self, x: Any, weight: Any, scale: Any, factor: Any, mean: Any) -> fx.Node:
        """Returns the quantized input, which linear layers with the same scale share."""
        key = (x, scale, factor, mean)
        if key not in self._steps:
            dtype = weight.meta["val"].dtype
            fits = factor is None and dtype is _FP8
            if x.target is gelu_quantize and fits and _alone(x, scale, mean):
                given = (x.args[0], scale, mean)
                self._steps[key] = insert(self.graph, _gelu_quantized, given)
            else:
                arguments = (x, scale, factor, mean, dtype)
                self._steps[key] = insert(self.graph, quantized_input, arguments)
        return self._steps[key]

    def _multiply(self, scale: Any, input_scale: Any) -> None:
        """Replaces a weight's scale by its product with the input's scale.

        The loader computes the product.
        """
        names, state = weight_names(self.program), self.program.state_dict
        factors = names[scale.name], names[input_scale.name]
        product = f"{factors[0].removesuffix(_WEIGHT_SCALE)}{_PRODUCT_SCALE}"
        for spec in self.program.graph_signature.input_specs:
            if spec.arg.name == scale.name:
                spec.target = product
        state[product] = state.pop(factors[0])
        self.products[product] = factors

    def _per_token(self, x: Any, weight: Any, factor: Any, mean: Any) -> tuple[fx.Node, fx.Node]:
        """Returns the quantized input and its per-token scales, shared by its linear layers."""
        key = (x, factor, mean)
        if key not in self._tokens:
            arguments = (x, factor, mean, weight.meta["val"].dtype)
            steps, scales = insert(self.graph, quantized_tokens, arguments)
            self._tokens[key] = steps, scales
        return self._tokens[key]

    def _ones_for(self, rows: int, like: Any) -> fx.Node:
        """Returns row scales of one, made once for all matmuls with this number of rows."""
        if rows not in self._ones:
            first = next(node for node in self.graph.nodes if node.op != "placeholder")
            options = {"dtype": torch.float32, "device": like.device, "pin_memory": False}
            with self.graph.inserting_before(first), like.fake_mode:
                made = self.graph.call_function(_FULL, ([rows, 1], 1.0), options)
                made.meta["val"] = _FULL([rows, 1], 1.0, **options)
            self._ones[rows] = made
        return self._ones[rows]


def _gelu_quantized(x: Tensor, scale: Tensor, mean: Tensor | None) -> Tensor:
    quantized: Tensor = gelu_quantize(x, dtype_name(_FP8), scale.reshape(1), mean)
    return quantized


def scaled_matmul(
    steps: Tensor, weight: Tensor, scale: Tensor, bias: Tensor | None, of_rows: Tensor, dtype: Any
) -> Tensor:
    """Multiplies quantized operands.

    Args:
        steps: quantized input, float8_e4m3fn ``[..., in]``.
        weight: quantized weight, float8_e4m3fn ``[out, in]``.
        scale: scale of each output channel, float32 ``[out]``.
        bias: ``[out]`` of ``dtype``, or None.
        of_rows: scale of each row, float32 ``[..., 1]``; ones if it is folded into ``scale``.
        dtype: dtype of the result, ``[..., out]``.
    """
    rows = steps.reshape(-1, steps.shape[-1])
    scales = of_rows if of_rows.ndim == 2 else of_rows.reshape(-1, 1)
    # Fast accumulation: the error of quantizing inputs to FP8 is far larger.
    product = torch._scaled_mm(
        rows, weight.t(), scales, scale[None], bias=bias, out_dtype=dtype, use_fast_accum=True
    )
    return product.reshape(*steps.shape[:-1], weight.shape[0])


def _alone(x: fx.Node, scale: Any, mean: Any) -> bool:
    """Returns True if all users of an input quantize it by this scale and mean, with no factor."""
    return all(
        user.target is quantized_linear
        and user.args[0] is x
        and user.args[4:LINEAR_TENSORS] == (scale, None, mean)
        for user in x.users
    )


def _require_same(asked: Mapping[str, bool], found: Mapping[str, bool]) -> None:
    differ: Sequence[str] = [n for n in {**asked, **found} if asked.get(n) is not found.get(n)]
    if differ:
        raise _differ(
            f"expected {sum(asked.values())} quantized matmuls and {len(asked)} 8-bit weights, "
            f"found {sum(found.values())} and {len(found)}; the first difference is {differ[0]}"
        )


def _differ(what: str) -> BuildError:
    return BuildError(
        "VIDC-QUANTIZE-COUNT",
        f"the program for the GPU differs from the quantized one: {what}",
        "report it with this message; a recipe that leaves the layer out builds",
    )
