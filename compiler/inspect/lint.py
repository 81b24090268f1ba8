"""Constructs of an ONNX graph that parsers ignore or refuse. Needs ``vidc[build]``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import onnx_ir as ir

from vidc.compiler.inspect.graph import no_graph
from vidc.exporters.onnx.constructs import Construct, Parser
from vidc.exporters.onnx.lint import lint


@dataclass(frozen=True)
class Issue:
    """Construct that a parser does not read as ONNX specifies, with its nodes."""

    parser: str
    construct: str
    reason: str
    remedy: str
    nodes: tuple[str, ...]


def find_issues(path: Path, model: Any) -> tuple[Issue, ...]:
    """Returns the issues that known parsers have with a model read from ``path``.

    Raises:
        GateError: ``VIDC-INSPECT-GRAPH``, edges or attributes of the model contradict ONNX.
    """
    try:
        graph = ir.from_proto(model)
        parsers: tuple[Parser, ...] = get_args(Parser)
        return tuple(issue for parser in parsers for issue in _issues(graph, parser))
    except (ir.serde.SerdeError, ValueError, TypeError, LookupError) as error:
        raise no_graph(path, str(error)) from error


def _issues(graph: ir.Model, parser: Parser) -> list[Issue]:
    nodes: dict[Construct, list[str]] = {}
    for finding in lint(graph, parser):
        nodes.setdefault(finding.construct, []).append(finding.node or finding.op_type)
    return [
        Issue(parser, construct.code, construct.reason, construct.remedy, tuple(names))
        for construct, names in nodes.items()
    ]
