"""Graph lint for backends, with errors that name values of the exported program."""

from collections.abc import Collection

import onnx_ir as ir

from vidc.compiler.backends import GraphError
from vidc.exporters.onnx.constructs import Construct, Parser
from vidc.exporters.onnx.lint import complaint, unhandled

_NEAR = 64
"""Limit on the values downstream of a node that are searched for a name of the program."""


def values_of(model: ir.Model, name: str) -> tuple[str, ...]:
    """Returns the names of a node's outputs and of values computed from them, the nearest first.

    A PyTorch operator may become several nodes; only the last outputs a value of its name.
    """
    waiting = [node for node in model.graph.all_nodes() if node.name == name]
    found = list[str]()
    for node in waiting:
        if len(found) >= _NEAR:
            break
        found += [value.name for value in node.outputs if value.name and value.name not in found]
        following = [user for value in node.outputs for user in value.consumers()]
        waiting += [user for user in following if user not in waiting]
    return tuple(found[:_NEAR])


def require_clean_graph(
    component: str, model: ir.Model, parser: Parser, handled: Collection[Construct] = ()
) -> None:
    """Rejects a graph in which lint finds a construct that the caller does not handle.

    Raises:
        GraphError: ``VIDC-EXPORT-LINT``, with the component, the first node and the reason.
    """
    findings = unhandled(model, parser, handled)
    if findings:
        raise GraphError(
            "VIDC-EXPORT-LINT",
            f"{component}: {complaint(model, parser, findings)}",
            findings[0].construct.remedy,
            component,
            values_of(model, findings[0].node),
        )
