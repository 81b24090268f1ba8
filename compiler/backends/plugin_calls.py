"""Calls of vidc's TensorRT plugins in a program, in place of the operations that they fuse."""

from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram

from vidc.compiler.backends.fused_calls import call_gelus, call_ring_writes, called
from vidc.compiler.backends.rings_8bit import (
    lower_rings,
    pop_rounding,
    quantized_signature,
)
from vidc.exporters.onnx.quantized import linear_from_steps
from vidc.exporters.program import LINEAR_TENSORS, is_dynamic
from vidc.plugins.arguments import dtype_name
from vidc.plugins.ops.gelu_quantize import gelu_quantize
from vidc.plugins.ops.quantized_linear import LinearArguments, quantized_linear
from vidc.plugins.signature import Signature


@dataclass(frozen=True)
class PluginUse:
    """Parts of a component that vidc's plugins compute.

    Attributes:
        rings: True for the KV rings: norm, rotation, write and attention.
        activations: True for GELU, with the quantization of its result to FP8.
        notes: remarks for the user, a line each.
    """

    rings: bool = False
    activations: bool = False
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return self.rings or self.activations


PORTABLE = PluginUse()
"""No plugins: standard operators alone."""


def call_plugins(
    program: ExportedProgram, signature: Signature, use: PluginUse
) -> tuple[Signature, tuple[str, ...]]:
    """Replaces operations by the operators that have plugins.

    Args:
        program: the component's program; changed in place.
        signature: the component's signature.
        use: what plugins compute.

    Returns:
        The signature, with 8-bit rings in the plugins' layout, and reasons why calls were not
        replaced, a line each.

    Raises:
        BuildError: ``VIDC-QUANTIZE-GRAPH``, an 8-bit ring is read without a fused write.
        UsageError: ``VIDC-KERNEL-ARGUMENT``, no kernel supports the sizes of an 8-bit ring.
    """
    left: list[str] = []
    if use.rings:
        signature = quantized_signature(program, signature)
        states = pop_rounding(program, every=True)
        reasons = call_ring_writes(program)
        left += [f"the ring of some layers is copied in every pass: {why}" for why in reasons]
        lower_rings(program, states, reasons)
    if use.activations:
        left += [f"some GELU are no plugins: {why}" for why in call_gelus(program)]
        _quantize_activations(program)
    return signature, tuple(left)


def _quantize_activations(program: ExportedProgram) -> None:
    """Lets GELU write FP8 where a quantized linear layer with a static scale is its only reader."""
    graph = program.graph
    for node in graph.find_nodes(op="call_function", target=quantized_linear):
        source = node.args[0]
        if not _fits(node, source):
            continue
        given = LinearArguments(*node.args[:LINEAR_TENSORS])
        gelu, steps_dtype = source.args[0], dtype_name(torch.float8_e4m3fn)
        scale: Any = given.scale
        with graph.inserting_before(node):
            value = scale.meta["val"]
            with value.fake_mode:
                one = value.reshape(1)
                steps_value = gelu.meta["val"].new_empty(
                    gelu.meta["val"].shape, dtype=torch.float8_e4m3fn
                )
            row = called(graph, torch.ops.aten.reshape.default, (scale, [1]), one)
            arguments = (gelu, steps_dtype, row, given.mean)
            steps = called(graph, gelu_quantize, arguments, steps_value)
            layer = (steps, given.weight, given.weight_scale, given.bias, scale)
            dtype = node.meta["val"].dtype
            result = called(graph, linear_from_steps, (*layer, dtype), node.meta["val"])
        node.replace_all_uses_with(result)
        graph.erase_node(node)
        graph.erase_node(source)
    program.graph_module.recompile()


def _fits(node: Any, source: Any) -> bool:
    given = LinearArguments(*node.args[:LINEAR_TENSORS])
    weight: Any = given.weight
    return (
        source.target is gelu_quantize
        and len(source.users) == 1
        and weight.meta["val"].dtype is torch.float8_e4m3fn
        and given.scale is not None
        and given.pre_quant_scale is None
        and not is_dynamic(node)
    )
