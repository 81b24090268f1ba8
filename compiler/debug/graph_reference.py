"""What PyTorch has for the values of a portable graph, whose layers may be in 8 bits.

The graph has Q and DQ around a Linear that the program has as it is, so that their values keep one
name: the program's products become those of the numbers that the graph multiplies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from vidc.compiler.build.program import ComponentProgram
from vidc.compiler.config.resolve import Settings
from vidc.compiler.debug.given import Given
from vidc.compiler.debug.reference import Reference
from vidc.compiler.quantize.count import asked_linears
from vidc.compiler.quantize.form import GRAPH
from vidc.compiler.quantize.lowering import quantized_linears
from vidc.exporters.components import component_groups
from vidc.exporters.linear_tensors import LinearTensors
from vidc.exporters.onnx.export import translated_program
from vidc.exporters.onnx.stored import STORED
from vidc.exporters.program import argument_placeholders
from vidc.plugins.ops.quantized_linear import quantized_linear_reference
from vidc.plugins.quantize import quantize

_SYMBOLIC = torch.ops.onnx_symbolic._symbolic.default
_LINEAR = torch.ops.aten.linear.default
_ROUNDS, _RESTORES = "QuantizeLinear", "DequantizeLinear"


def graph_reference(settings: Settings, made: ComponentProgram, given: Given) -> Reference:
    """What PyTorch has for a component's graph.

    Args:
        settings: of the build.
        made: what the graph was translated from.
        given: what the component is given; its weights are those of the bundle.
    """
    program, inputs = translated_program(made.program, made.signature, STORED)
    names = dict(zip(argument_placeholders(program), inputs, strict=True))
    linears = {linear.weight: linear for linear in _linears(settings, made.name, inputs)}
    for node in program.graph.nodes:
        if node.target is _SYMBOLIC:
            _interpret(node)
        elif node.target is _LINEAR and names.get(node.args[1]) in linears:
            node.target = _product(linears[names[node.args[1]]], given.find)
    (nodes,) = program.graph.output_node().args
    # Results go by the names of the signature, as in the graph.
    results = dict(zip(made.signature.graph_outputs(), nodes, strict=True))
    return Reference(program, inputs, results, given.find)


def _linears(settings: Settings, component: str, inputs: tuple[str, ...]) -> list[LinearTensors]:
    group = component_groups(settings.model)[component]
    quantized = settings.quantized(group)
    if quantized is None:
        return []
    linears = quantized_linears(quantized.recipe, settings.model, GRAPH)
    return asked_linears(inputs, group, linears, GRAPH)


def _product(tensors: LinearTensors, find: Callable[[str], Tensor]) -> Callable[..., Tensor]:
    """A Linear's product as its Q and DQ say; a graph has the weight's scale, not the product's."""

    def optional(name: str | None) -> Tensor | None:
        return None if name is None else find(name).float()

    def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        scale, of_input = find(tensors.weight_scale).float(), optional(tensors.input_scale)
        factor, mean = optional(tensors.input_factor), optional(tensors.input_mean)
        if of_input is not None:
            scale, of_input = scale * of_input, of_input.reshape(1)
        return quantized_linear_reference(x, weight, scale, bias, of_input, factor, mean)

    return product


def _interpret(node: fx.Node) -> None:
    """Makes a call of Q or DQ of a ring, which PyTorch only translates, one that it computes."""
    given: Any
    given, kind, *_ = node.args
    if kind not in (_ROUNDS, _RESTORES):
        raise ValueError(f"{node.name}: PyTorch has no {kind}")
    node.args, node.kwargs = (*given, node.meta["val"].dtype), {}
    node.target = _rounded if kind == _ROUNDS else _restored


def _rounded(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return quantize(x, scale[:, None], dtype)


def _restored(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) * scale[:, None].to(dtype)
