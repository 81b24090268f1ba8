"""`vidc diff`: compares two bundles, graphs or engines."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidc.compiler.cli.group import PATH, Command
from vidc.compiler.cli.output import json_option, print_json, print_text
from vidc.plugins.errors import UsageError

if TYPE_CHECKING:
    from vidc.compiler.inspect.changes import Sections
    from vidc.compiler.inspect.compare_bundles import WeightsDifference

_SHA256 = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


@click.command(cls=Command)
@click.argument("a", type=PATH)
@click.argument("b", type=PATH)
@json_option
def command(a: Path, b: Path, as_json: bool) -> None:
    """Compare two bundles, graphs or engines.

    Exits 0 whether they differ or not; with --json, "same" says which.
    """
    from vidc.compiler.inspect.subject import subject_of

    kind = subject_of(a)
    if subject_of(b) is not kind:
        raise UsageError(
            "VIDC-DIFF-KINDS",
            f"{a} is of kind {kind}, {b} of kind {subject_of(b)}",
            "give two bundles, two .onnx graphs, two .pt2 packages or two plans",
        )
    changed, weights = _compare(kind, a, b)
    if as_json:
        print_json(
            {
                "kind": kind,
                "same": not changed and not weights,
                "changes": {s: [vars(change) for change in c] for s, c in changed.items()},
                "weights": {group: vars(difference) for group, difference in weights.items()},
            }
        )
    else:
        print_text(_text(changed, weights))


def _compare(kind: str, a: Path, b: Path) -> "tuple[Sections, dict[str, WeightsDifference]]":
    from vidc.compiler.inspect import compare_bundles, graph, package, plan
    from vidc.compiler.inspect.subject import Subject
    from vidc.runtime.integrity import verify
    from vidc.runtime.manifest import read_manifest

    if kind is Subject.GRAPH:
        graphs = [graph.describe_graph(path, graph.load_graph(path)) for path in (a, b)]
        return graph.compare_graphs(*graphs), {}
    if kind is Subject.PACKAGE:
        packages = [package.describe_package(path) for path in (a, b)]
        return package.compare_packages(*packages), {}
    if kind is Subject.PLAN:
        return plan.compare_plans(*(plan.inspect_plan(path) for path in (a, b))), {}
    manifests = [read_manifest(path) for path in (a, b)]
    for path, manifest in zip((a, b), manifests, strict=True):
        verify(path, manifest, "fast")
    old, new = manifests
    changed = compare_bundles.compare_manifests(old, new)
    changed |= compare_bundles.compare_convolutions(a, old, b, new)
    return changed, compare_bundles.compare_weights(a, old, b, new)


def _text(changed: "Sections", weights: "dict[str, WeightsDifference]") -> str:
    lines = []
    for section, found in changed.items():
        lines.append(section)
        lines += [f"  {c.name}: {_value(c.old)} -> {_value(c.new)}" for c in found]
    for group, difference in weights.items():
        lines.append(f"values of {group}")
        lines.append(f"  {_difference(difference)}")
        lines += [f"  {name} is not in both, or in another shape" for name in difference.unmatched]
    return "\n".join(lines) or "no differences"


def _value(value: Any) -> str:
    return "none" if value is None else _SHA256.sub(r"\1", str(value))


def _difference(weights: "WeightsDifference") -> str:
    text = f"{weights.differing} of {weights.tensors} tensors differ"
    if weights.differing == 0:
        return text
    largest = "not finite" if weights.relative_l2 is None else f"{weights.relative_l2:.3g}"
    return f"{text}; largest relative L2 {largest}, in {weights.worst}"
