"""What an ONNX graph holds. Needs the ``onnx`` packages, which come with ``vidc[build]``."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vidc.plugins.errors import GateError, UnavailableError
from vidc.runtime.document import unreadable

_DTYPES = {"float": "float32", "double": "float64"}
"""ONNX's names of dtypes that others call otherwise."""


@dataclass(frozen=True)
class GraphTensor:
    """An input or output; a dimension that is no number is named, or ``?``."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Initializer:
    """A constant or a weight.

    Attributes:
        name: its name.
        dtype: its dtype.
        shape: its sizes.
        bytes: as stored.
        location: the file that holds it, beside the graph; None if the graph itself does.
        content: byte offset in that file, or the SHA-256 of what the graph holds.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    location: str | None
    content: str


@dataclass(frozen=True)
class Graph:
    """An ONNX model.

    Attributes:
        name: of the graph.
        producer: what wrote it.
        opsets: version of each domain of operators; the standard one is ``ai.onnx``.
        inputs: in order, initializers not among them.
        outputs: in order.
        initializers: in order.
        operators: how many nodes there are of each, those of subgraphs and functions included;
            operators that are not standard have their domain before their name.
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
    """The ``onnx.ModelProto`` in a file, without its external data.

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
            "pip install 'vidc[build]'",
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
    """Bytes that a graph takes from each file beside it."""
    files: Counter[str] = Counter()
    for initializer in graph.initializers:
        if initializer.location is not None:
            files[initializer.location] += initializer.bytes
    return dict(files)


def no_graph(path: Path, what: str) -> GateError:
    """A ``VIDC-INSPECT-GRAPH`` error about a file."""
    return GateError(
        "VIDC-INSPECT-GRAPH",
        f"{path} is not an ONNX model: {what[:200]}",
        "copy or export it again",
    )


def _text(value: Any) -> str:
    """A string of a model; protobuf hands out bytes where it is not UTF-8."""
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
