"""Refuses graphs that a parser would take and compute something else from."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from vidc.exporters.onnx.constructs import CONSTRUCTS, Construct, Parser


@dataclass(frozen=True)
class Finding:
    """A node that a parser does not take as the specification means it."""

    construct: Construct
    node: str
    op_type: str


def lint(model: ir.Model, parser: Parser) -> list[Finding]:
    """What ``parser`` would ignore or refuse of a graph, subgraphs and functions included.

    Where a shape or dtype that decides is unknown, the node is reported; ``export_onnx`` writes
    graphs that know all of them.
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
    """What ``lint`` finds beside what the caller says to the parser otherwise."""
    return [found for found in lint(model, parser) if found.construct not in handled]


def complaint(model: ir.Model, parser: Parser, findings: Sequence[Finding]) -> str:
    """What is wrong with a graph, in a line about the first of some findings."""
    first = findings[0]
    more = f" (the first of {len(findings)} findings)" if len(findings) > 1 else ""
    return (
        f"{parser} would not compute {model.graph.name} as exported: "
        f"{first.op_type} {first.node!r} ({first.construct.code}): {first.construct.reason}{more}"
    )
