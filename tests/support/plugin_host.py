"""Does with a library of plugins what TensorRT does, through ``tests/plugins/host``.

Structures are TensorRT's; ``Host`` holds their sizes to the headers' that the host was built with.
"""

import ctypes
from collections.abc import Iterator, Sequence
from ctypes import POINTER, Structure, c_char_p, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

BUILD, RUNTIME = 0, 1
LINEAR, CHW4 = 0, 3
DATA_TYPES = {
    torch.float32: 0, torch.float16: 1, torch.int8: 2, torch.int32: 3, torch.float8_e4m3fn: 6,
    torch.bfloat16: 7, torch.int64: 8,
}  # fmt: skip
TORCH_TYPES = {number: dtype for dtype, number in DATA_TYPES.items()}
FLOAT32, INT32, CHAR, INT64 = 1, 5, 6, 10
FIELD_TYPES = {float: FLOAT32, bool: INT32, str: CHAR, int: INT64}


class Dims(Structure):
    _fields_ = (("count", c_int32), ("sizes", c_int64 * 8))

    def shape(self) -> tuple[int, ...]:
        return tuple(self.sizes[: self.count])


class TensorDescription(Structure):
    _fields_ = (("dims", Dims), ("type", c_int32), ("format", c_int32), ("scale", c_float))


class DynamicDescription(Structure):
    _fields_ = (("now", TensorDescription), ("min", Dims), ("max", Dims), ("opt", Dims))


class Field(Structure):
    _fields_ = (("name", c_char_p), ("data", c_void_p), ("type", c_int32), ("length", c_int32))


class Fields(Structure):
    _fields_ = (("count", c_int32), ("fields", POINTER(Field)))

    def __iter__(self) -> Iterator[Field]:
        return (self.fields[i] for i in range(self.count))


@dataclass(frozen=True)
class Attribute:
    """A field as bytes of its own, which outlive the plugin that they came from."""

    name: str
    type: int
    length: int
    data: bytes | None

    @classmethod
    def of(cls, name: str, value: Any) -> "Attribute":
        """From a value of Python; its type is that of the operator's schema."""
        if isinstance(value, str):
            return cls(name, CHAR, len(value), value.encode())
        kind = {float: c_float, bool: c_int32, int: c_int64}[type(value)]
        return cls(name, FIELD_TYPES[type(value)], 1, bytes(kind(value)))


def dims(shape: Sequence[int]) -> Dims:
    return Dims(len(shape), (c_int64 * 8)(*shape))


def describe(tensor: Tensor, format: int = LINEAR) -> TensorDescription:
    return TensorDescription(dims(tensor.shape), DATA_TYPES[tensor.dtype], format, -1.0)


def dynamic(described: TensorDescription, first_is_unknown: bool = False) -> DynamicDescription:
    given = described.dims
    now = TensorDescription(given, described.type, described.format, described.scale)
    if first_is_unknown:
        now.dims = dims((-1, *given.shape()[1:]))
    return DynamicDescription(now, given, given, given)


def array(kind, values: Sequence):
    return (kind * max(len(values), 1))(*values)


class RefusedError(Exception):
    """Message of a plugin that returned an error."""


class Host:
    """A library of plugins, opened."""

    def __init__(self, library: Path, host: Path) -> None:
        self.call = ctypes.CDLL(str(host))
        for name in (
            "open", "creator_fields", "create", "clone", "serialize", "attach",
        ):  # fmt: skip
            self._returns(name, c_void_p)
        for name in (
            "open_error", "error", "creator_kind", "creator_name", "creator_version",
            "creator_namespace", "name", "version", "namespace", "metadata",
        ):  # fmt: skip
            self._returns(name, c_char_p)
        self._returns("supports", ctypes.c_bool)
        self._returns("workspace", ctypes.c_size_t)
        for name, structure in (
            ("tensor", TensorDescription), ("dynamic_tensor", DynamicDescription), ("field", Field),
        ):  # fmt: skip
            assert getattr(self.call, f"host_size_of_{name}")() == ctypes.sizeof(structure)
        self.recorder = ctypes.CDLL(str(library))
        if hasattr(self.recorder, "recorded_launches"):
            self.recorder.recorded_stream.restype = c_void_p
            self.recorder.recorded_word.restype = ctypes.c_uint64
        self.library = self.call.host_open(str(library).encode())
        assert self.library, self.call.host_open_error().decode()
        self.library = c_void_p(self.library)
        names = [self.of_creator("name", i) for i in range(self.call.host_creators(self.library))]
        self.creators = {name: index for index, name in enumerate(names)}

    def _returns(self, name: str, kind: type) -> None:
        getattr(self.call, f"host_{name}").restype = kind

    def of_creator(self, what: str, index: int) -> str:
        return getattr(self.call, f"host_creator_{what}")(self.library, index).decode()

    def field_types(self, name: str) -> dict[str, int]:
        """Types of the attributes that a creator lists, by name."""
        found = self.call.host_creator_fields(self.library, self.creators[name])
        return {field.name.decode(): field.type for field in Fields.from_address(found)}

    def error(self) -> str:
        return self.call.host_error(self.library).decode()

    def create(self, name: str, attributes: Sequence[Attribute], phase: int = BUILD) -> "Plugin":
        kept = [ctypes.create_string_buffer(a.data, len(a.data)) for a in attributes]
        fields = [
            Field(a.name.encode(), ctypes.cast(data, c_void_p), a.type, a.length)
            for a, data in zip(attributes, kept, strict=True)
        ]
        given = Fields(len(fields), array(Field, fields))
        made = self.call.host_create(
            self.library, self.creators[name], ctypes.byref(given), phase
        )  # fmt: skip
        return Plugin(self, made)


class Plugin:
    """One object of a library's; raises RefusedError where it returns an error."""

    def __init__(self, host: Host, made: int | None) -> None:
        self.host = host
        self.made = c_void_p(made)
        self.workspace: Tensor | None = None
        if not made:
            raise RefusedError(host.error())

    def __del__(self) -> None:
        if self.made:
            self.host.call.host_destroy(self.made)

    def _call(self, name: str, *arguments: Any) -> Any:
        return getattr(self.host.call, f"host_{name}")(self.made, *arguments)

    def _checked(self, name: str, *arguments: Any) -> None:
        if self._call(name, *arguments):
            raise RefusedError(self.host.error())

    def text(self, what: str) -> str:
        return self._call(what).decode()

    @property
    def outputs(self) -> int:
        return self._call("outputs")

    @property
    def build_version(self) -> int:
        return self._call("build_version")

    def aliases(self) -> list[int]:
        return [self._call("aliased_input", i) for i in range(self.outputs)]

    def clone(self) -> "Plugin":
        return Plugin(self.host, self._call("clone"))

    def attach(self) -> "Plugin":
        return Plugin(self.host, self._call("attach"))

    def output_types(self, dtypes: Sequence[torch.dtype]) -> list[torch.dtype]:
        made = (c_int32 * self.outputs)()
        given = array(c_int32, [DATA_TYPES[dtype] for dtype in dtypes])
        self._checked("output_types", made, self.outputs, given, len(dtypes))
        return [TORCH_TYPES[number] for number in made]

    def output_shapes(self, shapes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
        made = (Dims * self.outputs)()
        given = array(Dims, [dims(shape) for shape in shapes])
        self._checked("output_shapes", made, self.outputs, given, len(shapes))
        return [each.shape() for each in made]

    def supports(
        self, index: int, inputs: Sequence[TensorDescription], outputs: Sequence[TensorDescription]
    ) -> bool:
        given = array(DynamicDescription, [dynamic(each) for each in (*inputs, *outputs)])
        return self._call("supports", index, given, len(inputs), len(outputs))

    def configure(
        self, inputs: Sequence[TensorDescription], outputs: Sequence[TensorDescription],
        first_is_unknown: bool = False,
    ) -> None:  # fmt: skip
        a, b = (
            array(DynamicDescription, [dynamic(each, first_is_unknown) for each in side])
            for side in (inputs, outputs)
        )
        self._checked("configure", a, len(inputs), b, len(outputs))

    def workspace_bytes(
        self, inputs: Sequence[TensorDescription], outputs: Sequence[TensorDescription],
        first_is_unknown: bool = False,
    ) -> int:  # fmt: skip
        """0 also where the plugin reported an error."""
        a, b = (
            array(DynamicDescription, [dynamic(each, first_is_unknown) for each in side])
            for side in (inputs, outputs)
        )
        return self._call("workspace", a, len(inputs), b, len(outputs))

    def on_shape_change(
        self, inputs: Sequence[TensorDescription], outputs: Sequence[TensorDescription]
    ) -> None:
        a, b = array(TensorDescription, inputs), array(TensorDescription, outputs)
        self._checked("on_shape_change", a, len(inputs), b, len(outputs))

    def serialize(self) -> list[Attribute]:
        return [
            Attribute(field.name.decode(), field.type, field.length,
                      ctypes.string_at(field.data, field.length * self._bytes(field.type)))
            for field in Fields.from_address(self._call("serialize"))
        ]  # fmt: skip

    @staticmethod
    def _bytes(field_type: int) -> int:
        return {FLOAT32: 4, INT32: 4, CHAR: 1, INT64: 8}[field_type]

    def enqueue(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor], stream: int = 0) -> None:
        described = [array(TensorDescription, [describe(t) for t in s]) for s in (inputs, outputs)]
        addresses = [array(c_void_p, [t.data_ptr() for t in s]) for s in (inputs, outputs)]
        workspace = c_void_p(None if self.workspace is None else self.workspace.data_ptr())
        self._checked("enqueue", *described, *addresses, workspace, c_void_p(stream))


@dataclass(frozen=True)
class Node:
    """A call of one of vidc's operators, as a node of a network has it."""

    operator: str
    attributes: list[Attribute]
    inputs: list[Tensor]
    written: list[int]

    @classmethod
    def of(cls, operator: torch._ops.OpOverload, taken: dict[str, Any]) -> "Node":
        """From the operator's arguments; a plugin's tensors are contiguous."""
        tensors = {name: value for name, value in taken.items() if isinstance(value, Tensor)}
        marked = [a.name for a in operator._schema.arguments if a.is_write]
        return cls(
            operator.name().removeprefix("vidc::"),
            [Attribute.of(name, value) for name, value in taken.items()
             if value is not None and name not in tensors],
            [tensor.contiguous() for tensor in tensors.values()],
            [list(tensors).index(name) for name in marked],
        )  # fmt: skip

    def described(self) -> list[TensorDescription]:
        return [describe(tensor) for tensor in self.inputs]


def ready(host: Host, node: Node) -> tuple[Plugin, list[torch.dtype], list[tuple[int, ...]]]:
    """A plugin that went through building, serializing and loading, with its outputs' types."""
    built = host.create(node.operator, node.attributes).clone()
    types = built.output_types([tensor.dtype for tensor in node.inputs])
    shapes = built.output_shapes([tensor.shape for tensor in node.inputs])
    inputs = node.described()
    outputs = [
        TensorDescription(dims(shape), DATA_TYPES[dtype], LINEAR, -1.0)
        for dtype, shape in zip(types, shapes, strict=True)
    ]
    every = range(len(inputs) + len(outputs))
    assert all(built.supports(index, inputs, outputs) for index in every)
    built.configure(inputs, outputs)
    size = built.workspace_bytes(inputs, outputs)
    loaded = host.create(node.operator, built.serialize(), RUNTIME).attach()
    if size:
        # Nobody clears it between runs.
        loaded.workspace = torch.full(
            (size,), 0x5A, dtype=torch.uint8, device=node.inputs[0].device
        )
    loaded.on_shape_change(inputs, outputs)
    return loaded, types, shapes
