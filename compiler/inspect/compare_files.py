"""How two ONNX graphs, or two packages, differ."""

from typing import Any

from vidc.compiler.inspect.changes import Sections, sections
from vidc.compiler.inspect.graph import Graph, GraphTensor, Initializer
from vidc.compiler.inspect.package import Package
from vidc.runtime.strict import plain


def compare_graphs(old: Graph, new: Graph) -> Sections:
    """What differs between two graphs: names, tensors, operators, and how they are wired."""
    return sections(_graph_subjects(old), _graph_subjects(new))


def compare_packages(old: Package, new: Package) -> Sections:
    """What differs between two packages: what they say of themselves, and their files."""
    return sections(_package_subjects(old), _package_subjects(new))


def _graph_subjects(graph: Graph) -> dict[str, dict[str, Any]]:
    return {
        "graph": {"name": graph.name, "producer": graph.producer, "wiring": graph.wiring},
        "opsets": graph.opsets,
        "inputs": {tensor.name: _tensor(tensor) for tensor in graph.inputs},
        "outputs": {tensor.name: _tensor(tensor) for tensor in graph.outputs},
        "initializers": {item.name: _initializer(item) for item in graph.initializers},
        "operators": graph.operators,
    }


def _tensor(tensor: GraphTensor) -> str:
    return f"{tensor.dtype} {_shape(tensor.shape)}"


def _initializer(item: Initializer) -> str:
    where = "embedded" if item.location is None else item.location
    return f"{item.dtype} {_shape(item.shape)} {where} @ {item.content}"


def _shape(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _package_subjects(package: Package) -> dict[str, dict[str, Any]]:
    return {
        "package": {"content": package.content, "format_version": package.format_version},
        "metadata": package.metadata,
        "files": plain(package.files),
    }
