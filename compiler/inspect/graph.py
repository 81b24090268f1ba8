"""Description of an ONNX graph. Needs the ``onnx`` packages of ``vidc[build]``."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidc.compiler.inspect.changes import Sections, sections
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.installation import install_extra
from vidc.runtime.document import unreadable

_DTYPES = {"float": "float32", "double": "float64"}
"""ONNX dtype names that differ from PyTorch's."""


@dataclass(frozen=True)
class GraphTensor:
    """Input or output; a dynamic dimension is a name or ``?``."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Initializer:
    """Constant or weight of a graph.

    Attributes:
        name: name of the tensor.
        dtype: dtype of the tensor.
        shape: sizes of the tensor.
        bytes: stored size.
        location: external file that holds it; None if the graph does.
        content: byte offset in that file, or the SHA-256 of embedded data.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    location: str | None
    content: str


@dataclass(frozen=True)
class Graph:
    """Description of an ONNX model.

    Attributes:
        name: name of the graph.
        producer: tool that wrote it.
        opsets: version of each domain of operators; the standard one is ``ai.onnx``.
        inputs: inputs in order, without initializers.
        outputs: outputs in order.
        initializers: initializers in order.
        operators: number of nodes by operator, those of subgraphs and functions included; the name
            of an operator that is not standard begins with its domain.
        wiring: SHA-256 of all nodes with their attributes and edges.
    """

    name: str
    producer: str
    opsets: dict[str, int]
    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]
    initializers: tuple[Initializer, ...]
    operators: dict[str, int]
    wiring: str


def load_graph(path: Path) -> Any:
    """Loads the ``onnx.ModelProto`` in a file without its external data.

    Raises:
        UnavailableError: ``VIDC-ENV-ONNX``, ``onnx`` or ``onnx_ir`` is not installed.
        GateError: ``VIDC-INSPECT-GRAPH``, the file is no ONNX model; ``VIDC-BUNDLE-UNREADABLE``.
    """
    try:
        import onnx
        import onnx_ir  # noqa: F401  lint reads graphs with it
        from google.protobuf.message import DecodeError
    except ImportError as error:
        raise UnavailableError(
            "VIDC-ENV-ONNX",
            f"reading {path} needs the package {error.name}, which is not installed",
            install_extra("build"),
        ) from error
    try:
        model = onnx.load_model(path, load_external_data=False)
    except DecodeError as error:
        raise no_graph(path, str(error)) from error
    except OSError as error:
        raise unreadable(path, error) from error
    if not model.opset_import or not model.graph.node:
        raise no_graph(path, "it has no operators")
    return model


def describe_graph(path: Path, model: Any) -> Graph:
    """Describes a model that ``load_graph`` read from ``path``.

    Raises:
        GateError: ``VIDC-INSPECT-GRAPH``, it contradicts ONNX.
    """
    graph = model.graph
    try:
        initializers = tuple(_initializer(tensor) for tensor in graph.initializer)
        names = {initializer.name for initializer in initializers}
        return Graph(
            name=_text(graph.name),
            producer=f"{model.producer_name} {model.producer_version}".strip(),
            opsets={_text(o.domain) or "ai.onnx": o.version for o in model.opset_import},
            inputs=tuple(_tensor(value) for value in graph.input if value.name not in names),
            outputs=tuple(_tensor(value) for value in graph.output),
            initializers=initializers,
            operators=dict(Counter(_operator(node) for node in _nodes(model)).most_common()),
            wiring=_wiring(model),
        )
    except (ValueError, KeyError) as error:
        raise no_graph(path, str(error)) from error


def external_files(graph: Graph) -> dict[str, int]:
    """Returns the bytes that a graph reads from each external file."""
    files: Counter[str] = Counter()
    for initializer in graph.initializers:
        if initializer.location is not None:
            files[initializer.location] += initializer.bytes
    return dict(files)


def no_graph(path: Path, what: str) -> GateError:
    """Returns a ``VIDC-INSPECT-GRAPH`` error about a file."""
    return GateError(
        "VIDC-INSPECT-GRAPH",
        f"{path} is not an ONNX model: {what[:200]}",
        "copy or export it again",
    )


def _text(value: Any) -> str:
    """Returns a string of a model; protobuf returns bytes if it is not UTF-8."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not UTF-8")
    return value


def _dtype(element_type: int) -> str:
    from onnx import TensorProto

    name = str(TensorProto.DataType.Name(element_type)).lower()
    return _DTYPES.get(name, name)


def _tensor(value: Any) -> GraphTensor:
    name, kind = _text(value.name), value.type.WhichOneof("value")
    if kind != "tensor_type":
        return GraphTensor(name, str(kind), ())
    tensor = value.type.tensor_type
    shape = tuple(
        d.dim_value if d.HasField("dim_value") else _text(d.dim_param) or "?"
        for d in tensor.shape.dim
    )
    return GraphTensor(name, _dtype(tensor.elem_type), shape)


def _initializer(tensor: Any) -> Initializer:
    external = {entry.key: entry.value for entry in tensor.external_data}
    stored = tensor.raw_data or tensor.SerializeToString(deterministic=True)
    return Initializer(
        name=_text(tensor.name),
        dtype=_dtype(tensor.data_type),
        shape=tuple(tensor.dims),
        bytes=_external_bytes(tensor, external) if external else len(stored),
        location=_text(external["location"]) if external else None,
        content=_text(external.get("offset", "0"))
        if external
        else hashlib.sha256(stored).hexdigest(),
    )


def _external_bytes(tensor: Any, external: Mapping[str, str]) -> int:
    if "length" in external:
        return int(external["length"])
    from onnx.helper import tensor_dtype_to_np_dtype

    size: int = math.prod(tensor.dims) * tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return size


def _operator(node: Any) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain else str(node.op_type)


def _nodes(model: Any) -> Iterator[Any]:
    yield from _nodes_below(model.graph.node)
    for function in model.functions:
        yield from _nodes_below(function.node)


def _nodes_below(nodes: Iterable[Any]) -> Iterator[Any]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _nodes_below(graph.node)


def _wiring(model: Any) -> str:
    digest = hashlib.sha256()
    for part in (*model.graph.node, *model.functions):
        digest.update(part.SerializeToString(deterministic=True))
    return digest.hexdigest()


def compare_graphs(old: Graph, new: Graph) -> Sections:
    """Returns the differences between two graphs: names, tensors, operators and wiring."""
    return sections(_graph_subjects(old), _graph_subjects(new))


def _graph_subjects(graph: Graph) -> dict[str, dict[str, Any]]:
    return {
        "graph": {"name": graph.name, "producer": graph.producer, "wiring": graph.wiring},
        "opsets": graph.opsets,
        "inputs": {tensor.name: _tensor_text(tensor) for tensor in graph.inputs},
        "outputs": {tensor.name: _tensor_text(tensor) for tensor in graph.outputs},
        "initializers": {item.name: _initializer_text(item) for item in graph.initializers},
        "operators": graph.operators,
    }


def _tensor_text(tensor: GraphTensor) -> str:
    return f"{tensor.dtype} {_shape_text(tensor.shape)}"


def _initializer_text(item: Initializer) -> str:
    where = "embedded" if item.location is None else item.location
    return f"{item.dtype} {_shape_text(item.shape)} {where} @ {item.content}"


def _shape_text(shape: tuple[int | str, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
