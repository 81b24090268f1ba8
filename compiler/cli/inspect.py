"""`vidc inspect`: describes a bundle, a graph or an engine."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vidc.compiler.cli.group import PATH, Command
from vidc.compiler.cli.output import columns, json_option, print_json, print_text
from vidc.compiler.report.weights import origin_text
from vidc.compiler.store.disk import byte_size
from vidc.plugins.errors import UsageError, nearest

if TYPE_CHECKING:
    from vidc.compiler.backends.aoti.convolution_choices import Choice
    from vidc.compiler.inspect.bundle import BundleSummary, EngineSummary, Total
    from vidc.compiler.inspect.graph import Graph
    from vidc.compiler.inspect.lint import Issue
    from vidc.compiler.inspect.package import Package
    from vidc.compiler.inspect.plan import InspectedPlan
    from vidc.plugins.signature import Signature


@click.command(cls=Command)
@click.argument("path", type=PATH)
@click.option("--component", metavar="NAME", help="Show the tensors of one engine of a bundle.")
@json_option
def command(path: Path, component: str | None, as_json: bool) -> None:
    """Show what a bundle, a graph or an engine holds.

    PATH is a bundle's folder, an .onnx file, a .pt2 package or a TensorRT .plan, which is loaded
    if its GPU and TensorRT version are present.
    """
    from vidc.compiler.inspect.subject import Subject, subject_of

    kind = subject_of(path)
    if component is not None and kind is not Subject.BUNDLE:
        raise UsageError(
            "VIDC-CLI-USAGE", f"--component is for bundles, and {path} is none", "leave it out"
        )
    if kind is Subject.GRAPH:
        document, text = _graph(path)
    elif kind is Subject.PACKAGE:
        document, text = _package(path)
    elif kind is Subject.PLAN:
        document, text = _plan(path)
    elif component is not None:
        document, text = _component(path, component)
    else:
        document, text = _bundle(path)
    if as_json:
        print_json({"kind": kind, **document})
    else:
        print_text(text)


def _bundle(path: Path) -> tuple[dict[str, Any], str]:
    from vidc.compiler.inspect.bundle import summarize_bundle
    from vidc.runtime.integrity import verify
    from vidc.runtime.manifest import read_manifest
    from vidc.runtime.strict import plain

    manifest = read_manifest(path)
    verify(path, manifest, "fast")
    summary = summarize_bundle(path, manifest)
    return plain(summary), _bundle_text(summary)


def _component(path: Path, name: str) -> tuple[dict[str, Any], str]:
    from vidc.compiler.inspect.bundle import summarize_engine
    from vidc.compiler.inspect.package import convolutions_of
    from vidc.runtime.manifest import read_manifest
    from vidc.runtime.strict import plain

    manifest = read_manifest(path)
    engine = manifest.engines.get(name)
    if engine is None:
        raise UsageError(
            "VIDC-INSPECT-COMPONENT",
            f"{path} has no component {name!r}",
            nearest(name, manifest.engines),
        )
    summary = summarize_engine(name, engine, manifest)
    convolutions = convolutions_of(path / engine.files[0])
    document = {
        "engine": plain(summary),
        "signature": engine.signature.to_json(),
        "convolutions": plain(convolutions),
    }
    tables = [_engines_text((summary,)), _signature_text(engine.signature)]
    return document, "\n\n".join([*tables, *_convolutions_text(convolutions)])


def _graph(path: Path) -> tuple[dict[str, Any], str]:
    from vidc.compiler.inspect.graph import describe_graph, load_graph
    from vidc.runtime.strict import plain

    model = load_graph(path)

    from vidc.compiler.inspect.lint import find_issues

    graph, issues = describe_graph(path, model), find_issues(path, model)
    text = f"{_graph_text(path, graph)}\n\n{_issues_text(issues)}"
    return {**plain(graph), "lint": plain(issues)}, text


def _package(path: Path) -> tuple[dict[str, Any], str]:
    from vidc.compiler.inspect.package import describe_package
    from vidc.runtime.strict import plain

    package = describe_package(path)
    return plain(package), _package_text(package)


def _plan(path: Path) -> tuple[dict[str, Any], str]:
    from vidc.compiler.inspect.plan import inspect_plan
    from vidc.runtime.strict import plain

    found = inspect_plan(path)
    return plain(found), _plan_text(found)


def _shapes_text(shapes: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())


def _bundle_text(bundle: "BundleSummary") -> str:
    target, validation, session = bundle.target, bundle.validation, bundle.session
    head = [
        ("name", bundle.name),
        ("preset", f"{bundle.preset} ({bundle.family})"),
        ("target", f"{target.name} {target.compute_capability or ''}"),
        (
            "validation",
            f"{'passed' if validation.passed else 'NOT PASSED'}, {validation.gates} gates, "
            f"level {validation.level}",
        ),
        (
            "record",
            "matches the manifest"
            if bundle.record_error is None
            else f"DOES NOT MATCH, so it does not load: {bundle.record_error}",
        ),
        ("prompts", bundle.prompts),
        *([("decoders", ", ".join(bundle.decoders))] if bundle.decoders else []),
        *([("conditions", _shapes_text(bundle.conditions))] if bundle.conditions else []),
        ("size", byte_size(bundle.bytes)),
        (
            "session",
            f"{_total(session.states)} of states, {_total(session.spares)} of second buffers",
        ),
        ("tools", ", ".join(f"{name} {version}" for name, version in bundle.tools.items())),
        ("digest", bundle.digest),
        ("signer", f"{bundle.signer} (not checked)" if bundle.signer else "none"),
    ]
    weights = [
        (name, str(w.tensors), f"{w.elements:,}", byte_size(w.bytes), _names(w.dtypes),
         origin_text(w.source))
        for name, w in bundle.weights.items()
    ]  # fmt: skip
    return "\n\n".join(
        [
            columns(list(head)),
            columns([("weights", "tensors", "elements", "size", "dtypes", "from"), *weights]),
            _engines_text(bundle.engines),
        ]
    )


def _engines_text(engines: "tuple[EngineSummary, ...]") -> str:
    header = (
        "component",
        "backend",
        "version",
        "precision",
        "inputs",
        "outputs",
        "states",
        "files",
    )
    rows = [
        (
            engine.component,
            engine.backend,
            engine.version,
            engine.precision,
            *(_total(total) for total in (engine.inputs, engine.outputs, engine.states)),
            ", ".join(f"{path} ({byte_size(size)})" for path, size in engine.files.items()),
        )
        for engine in engines
    ]
    return columns([header, *rows])


def _signature_text(signature: "Signature") -> str:
    rows = [
        (
            tensor.name,
            tensor.role.value,
            tensor.dtype,
            str(list(tensor.shape)),
            f"{tensor.access or ''}{' in place' if tensor.in_place else ''}"
            + (f", axes {list(tensor.axes)}" if tensor.axes else ""),
        )
        for tensor in signature
    ]
    return columns([("tensor", "role", "dtype", "shape", "access"), *rows])


def _graph_text(path: Path, graph: "Graph") -> str:
    from vidc.compiler.inspect.graph import external_files

    embedded = [item for item in graph.initializers if item.location is None]
    kept = f"{len(embedded)} in the graph, {byte_size(sum(item.bytes for item in embedded))}"
    external = [
        f"{byte_size(size)} from {file}{'' if (path.parent / file).is_file() else ' (not there)'}"
        for file, size in external_files(graph).items()
    ]
    head = [
        ("name", graph.name),
        ("producer", graph.producer),
        ("opset", ", ".join(f"{domain} {version}" for domain, version in graph.opsets.items())),
        ("initializers", "; ".join([f"{len(graph.initializers)}: {kept}", *external])),
        ("nodes", f"{sum(graph.operators.values())}: {_names(graph.operators)}"),
    ]
    tensors = [
        (role, tensor.name, tensor.dtype, f"[{', '.join(map(str, tensor.shape))}]")
        for role, found in (("input", graph.inputs), ("output", graph.outputs))
        for tensor in found
    ]
    return f"{columns(list(head))}\n\n{columns([('', 'tensor', 'dtype', 'shape'), *tensors])}"


def _issues_text(issues: "tuple[Issue, ...]") -> str:
    if not issues:
        return "lint: every parser that vidc knows takes it as it is meant"
    return "\n".join(
        f"lint: {issue.parser}: {issue.construct}: {issue.reason} "
        f"({len(issue.nodes)} nodes, {issue.nodes[0]} the first); {issue.remedy}"
        for issue in issues
    )


def _package_text(package: "Package") -> str:
    head = [
        ("content", package.content),
        ("format", package.format_version),
        *((name, str(value)) for name, value in package.metadata.items()),
        ("pickles", ", ".join(package.pickles) or "none"),
    ]
    files = [(name, byte_size(member.bytes)) for name, member in package.files.items()]
    tables = [columns(list(head)), columns([("file", "size"), *files])]
    return "\n\n".join([*tables, *_convolutions_text(package.convolutions)])


def _convolutions_text(choices: "dict[str, Choice]") -> list[str]:
    """Returns a table of chosen forms and times, and a line for each measured machine."""
    if not choices:
        return []
    header = ("convolution", "form", "decided", "times", "reason")
    rows = [
        (name, choice.form.value, choice.decided.value, choice.times_text, choice.reason)
        for name, choice in choices.items()
    ]
    machines = {
        f"measured on {c.device} with {c.build}": None for c in choices.values() if c.device
    }
    return ["\n".join([columns([header, *rows]), *machines])]


def _plan_text(found: "InspectedPlan") -> str:
    plan, network = found.plan, found.network
    head: list[tuple[str, ...]] = [
        ("product", f"{plan.product} {plan.version or ''}"),
        ("built for", ", ".join(plan.architectures) or "not said"),
        ("size", byte_size(plan.bytes)),
        (
            "fused attention",
            _fused(_kernels(found), None if network is None else len(network.attentions)),
        ),
        ("8-bit matmuls", _products(found)),
        *_engine_head(found),
    ]
    tables = [columns(head)]
    if found.engine is not None:
        tables.append(_layers_text("kernels", found.engine.kinds))
    if network is None:
        return "\n\n".join(tables)
    fused = found.fused
    attentions = [
        (
            attention.name,
            attention.dtype,
            str(list(attention.query)),
            str(list(attention.keys)),
            "valid length" if attention.reads_length else "all",
            "yes" if attention.must_fuse else "or taken apart",
            "not known" if fused is None else "yes" if fused[attention.name] else "NO",
        )
        for attention in network.attentions
    ]
    tables.append(_layers_text("layers", network.layers))
    if attentions:
        header = ("attention", "type", "queries", "keys", "attends to", "must fuse", "is fused")
        tables.append(columns([header, *attentions]))
    quantized = [(p.name, p.weight, p.weights, p.inputs) for p in network.quantized]
    if quantized:
        tables.append(columns([("product", "weight", "weight in", "input in"), *quantized]))
    tables += [
        f"warning: {product.name} multiplies {product.weight} in high precision: its Q and DQ did "
        "not fuse"
        for product in found.unfused
    ]
    tables += [
        f"warning: {', '.join(layer.nodes) or layer.name} did not fuse: {layer.name} is a kernel "
        "that only quantizes or dequantizes"
        for layer in found.apart
    ]
    return "\n\n".join(tables)


def _engine_head(found: "InspectedPlan") -> list[tuple[str, ...]]:
    """Returns rows on kernels and memory, and the reason if the plan was not loaded."""
    engine = found.engine
    rows = []
    if engine is None:
        rows.append(("kernels", "not known"))
    else:
        said = "the engine" if engine.said_by == "inspector" else "its builder"
        rows.append(
            ("kernels", f"{len(engine.layers)}, as {said} says; --json has tactics and formats")
        )
        memory = (f"{name} {byte_size(size)}" for name, size in engine.memory.items())
        rows.append(("memory", ", ".join(memory) or "not said"))
    if found.not_loaded is not None:
        rows.append(("not loaded", found.not_loaded))
    return list(rows)


def _layers_text(title: str, layers: dict[str, dict[str, int]]) -> str:
    rows = [
        (kind, str(sum(types.values())), _names(types))
        for kind, types in sorted(layers.items(), key=lambda each: -sum(each[1].values()))
    ]
    return columns([(title, "number", "by type"), *rows])


def _kernels(found: "InspectedPlan") -> int | None:
    """Returns the number of attentions that are one fused kernel; None if it is not known."""
    if found.engine is None:
        return found.plan.fused_attentions
    return sum(layer.is_attention for layer in found.engine.layers)


def _fused(kernels: int | None, attentions: int | None) -> str:
    if kernels is None:
        return "cannot be counted without a GPU"
    if attentions is None:
        return f"{kernels} kernels"
    apart = attentions - kernels
    if apart < 0:
        return f"{kernels} kernels, and the network described beside it has {attentions}: another's"
    return f"{kernels} of {attentions}" + (f": {apart} TAKEN APART" if apart else "")


def _products(found: "InspectedPlan") -> str:
    products, network = found.plan.products, found.network
    if products is None and (network is None or found.engine is None):
        return "cannot be counted without a GPU"
    if network is None:
        assert products is not None
        return str(len(products))
    meant = sum(product.computes for product in network.quantized)
    apart = len(found.unfused)
    return f"{meant - apart} of {meant}" + (f": {apart} NOT FUSED" if apart else "")


def _total(total: "Total") -> str:
    return f"{total.count} ({byte_size(total.bytes)})" if total.count else "0"


def _names(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())
