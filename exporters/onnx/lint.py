"""Lint of graphs for constructs that a parser computes differently or refuses."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from vidc.exporters.onnx.constructs import CONSTRUCTS, Construct, Parser


@dataclass(frozen=True)
class Finding:
    """A node that a parser does not implement as specified."""

    construct: Construct
    node: str
    op_type: str


def lint(model: ir.Model, parser: Parser) -> list[Finding]:
    """Returns the nodes that ``parser`` ignores or refuses, in subgraphs and functions too.

    A node is reported if a relevant shape or dtype is unknown; graphs from ``export_onnx`` have
    all of them.
    """
    nodes = [*model.graph.all_nodes()]
    for function in model.functions.values():
        nodes.extend(function.all_nodes())
    return [
        Finding(construct, node.name or "", node.op_type)
        for node in nodes
        for construct in CONSTRUCTS
        if parser in construct.parsers and construct.matches(node)
    ]


def unhandled(
    model: ir.Model, parser: Parser, handled: Collection[Construct] = ()
) -> list[Finding]:
    """Returns the findings of ``lint`` except constructs that the caller handles."""
    return [found for found in lint(model, parser) if found.construct not in handled]


def complaint(model: ir.Model, parser: Parser, findings: Sequence[Finding]) -> str:
    """Returns one line about the first of the findings."""
    first = findings[0]
    more = f" (the first of {len(findings)} findings)" if len(findings) > 1 else ""
    return (
        f"{parser} would not compute {model.graph.name} as exported: "
        f"{first.op_type} {first.node!r} ({first.construct.code}): {first.construct.reason}{more}"
    )
