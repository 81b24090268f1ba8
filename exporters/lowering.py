"""Lowering of a program's vidc operators to the form that a backend compiles."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.export.graph_signature import TensorArgument
from torch.fx.experimental.proxy_tensor import make_fx

from vidc.exporters.tracing import tracing
from vidc.plugins.ops.quantize_kv import (
    dequantize_kv,
    dequantize_kv_reference,
    quantize_kv,
    quantize_kv_reference,
)

FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2
"""Operator by which a functional graph calls a mutating one, which is its first argument."""


def inline(
    program: ExportedProgram, operator: torch._ops.OpOverload, form: Callable[..., Tensor]
) -> None:
    """Inlines the functional form of a mutating operator at every call.

    A compiler can then fuse it with the producers of its arguments.

    Args:
        program: from ``export_program``; changed in place.
        operator: mutates one whole tensor and returns nothing.
        form: takes the operator's arguments and returns the mutated tensor.
    """
    graph, renamed = program.graph, {}
    for node in graph.find_nodes(op="call_function", target=FUNCTIONALIZED):
        if node.args[0] is not operator:
            continue
        with graph.inserting_before(node):
            result = insert(graph, form, functionalized_arguments(operator, node.kwargs))
        # The results are the operator's own (none here), then the mutated tensor.
        for user in tuple(node.users):
            renamed[user.name] = result.name
            user.replace_all_uses_with(result)
            graph.erase_node(user)
        graph.erase_node(node)
    _rename_results(program, renamed)
    program.graph_module.recompile()


def expand(
    program: ExportedProgram,
    operator: torch._ops.OpOverload,
    form: Callable[..., Any],
    only: Callable[[fx.Node], bool] = lambda _: True,
) -> None:
    """Inlines the form of a functional operator at every call, or at some.

    Args:
        program: from ``export_program``; changed in place.
        operator: returns one or several tensors.
        form: takes the operator's arguments and returns as many tensors.
        only: returns True for the calls to inline.
    """
    graph, renamed = program.graph, {}
    for node in filter(only, graph.find_nodes(op="call_function", target=operator)):
        with graph.inserting_before(node):
            results = insert(graph, form, node.args)
        if isinstance(results, fx.Node):
            renamed[node.name] = results.name
            node.replace_all_uses_with(results)
            graph.erase_node(node)
            continue
        for user in tuple(node.users):
            result = results[user.args[1]]
            renamed[user.name] = result.name
            user.replace_all_uses_with(result)
            graph.erase_node(user)
        graph.erase_node(node)
    _rename_results(program, renamed)
    program.graph_module.recompile()


def open_stored(program: ExportedProgram) -> None:
    """Inlines quantization and dequantization of 8-bit KV rings, for compilers to fuse."""
    expand(program, quantize_kv, quantize_kv_reference)
    expand(program, dequantize_kv, dequantize_kv_reference)


def replace(
    program: ExportedProgram, operator: torch._ops.OpOverload, other: torch._ops.OpOverload
) -> None:
    """Replaces every call of an operator by one of another with the same schema."""
    for node in program.graph.find_nodes(op="call_function", target=operator):
        node.target = other
    program.graph_module.recompile()


def _rename_results(program: ExportedProgram, renamed: Mapping[str, str]) -> None:
    """Renames the nodes that a program returns."""
    for spec in program.graph_signature.output_specs:
        if spec.arg.name in renamed:
            spec.arg = TensorArgument(name=renamed[spec.arg.name])


def functionalized_arguments(operator: torch._ops.OpOverload, kwargs: Any) -> list[Any]:
    """Returns the arguments of a mutating operator from those of its functionalized call.

    The call has all mutated tensors in one list, and for each mutated argument, here a whole
    tensor, its index in that list.
    """
    return [
        kwargs["_all_bases"][kwargs[f"_{argument.name}_base_index"]]
        if argument.is_write
        else kwargs[argument.name]
        for argument in operator._schema.arguments
    ]


def insert(graph: fx.Graph, form: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    """Inserts the operations of ``form`` at the graph's insertion point; returns result nodes.

    Args:
        graph: its nodes have their values as ``meta["val"]``.
        form: takes tensors for nodes, and other values unchanged.
        arguments: nodes and other values.
    """
    values = [a.meta["val"] if isinstance(a, fx.Node) else a for a in arguments]
    tensors = [index for index, value in enumerate(values) if isinstance(value, Tensor)]

    def of_tensors(*given: Tensor) -> Any:
        every = dict(enumerate(values)) | dict(zip(tensors, given, strict=True))
        return form(*every.values())

    with tracing(), values[tensors[0]].fake_mode:
        # Before dispatch, as in an export, norms are still one operation.
        traced = make_fx(of_tensors, pre_dispatch=True)(*(values[index] for index in tensors))
    given = iter([arguments[index] for index in tensors])
    copies: dict[fx.Node, fx.Node] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            copies[node] = next(given)
        elif node.op == "output":
            return fx.map_arg(node.args[0], copies.__getitem__)
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
    raise AssertionError("a graph has an output")
