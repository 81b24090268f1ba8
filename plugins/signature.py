"""Signatures: the inputs, outputs and states of a component or an engine."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import torch
from torch import Tensor

from vidc.plugins.transposed_values import GROUP, stored_at

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_RING_AXES = 4


class Role(StrEnum):
    """The role of a tensor in its component."""

    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    """Read or written by the component; lives as long as a session."""


class Access(StrEnum):
    """The way a component uses a state."""

    READ = "read"
    WRITE = "write"
    """Overwritten completely."""
    READ_WRITE = "read_write"


@dataclass(frozen=True)
class Rounding:
    """Quantization of an 8-bit state, by the names of weights.

    Attributes:
        scale: scale per head, float32 ``[H]``.
        mean: mean subtracted before quantization, float32 ``[H, D]``; None for zeros.
        reordered: True if slots are in the order of ``transposed_values.py``.
        padding: number of slots after the component's; nothing writes them.
    """

    scale: str
    mean: str | None = None
    reordered: bool = False
    padding: int = 0

    def __post_init__(self) -> None:
        if self.padding not in range(GROUP if self.reordered else 1):
            raise ValueError(
                f"{self.padding} slots of padding; reordered slots have 0 to {GROUP - 1}, others 0"
            )


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a signature.

    Attributes:
        access: the component's access to a state; None for any other tensor.
        in_place: True if the engine writes the state where it reads it; otherwise the new value
            is in a second buffer.
        axes: the component's axis for each axis of the engine's state; None if their order is the
            same.
        rounding: quantization of an 8-bit ring; None for any other tensor.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: Role
    access: Access | None = None
    in_place: bool = False
    axes: tuple[int, ...] | None = None
    rounding: Rounding | None = None

    def __post_init__(self) -> None:
        if (self.role is Role.STATE) != (self.access is not None):
            raise ValueError(f"{self.name}: a state must have an access, any other tensor none")
        if self.axes is not None and self.access is None:
            raise ValueError(f"{self.name}: only a state may have axes in another order")
        if self.axes is not None and sorted(self.axes) != [*range(len(self.shape))]:
            raise ValueError(
                f"{self.name}: {self.axes} is not a permutation of {len(self.shape)} axes"
            )
        if self.rounding is not None and self.rounding.padding and len(self.shape) != _RING_AXES:
            raise ValueError(f"{self.name}: only a ring, of {_RING_AXES} axes, may have padding")

    @property
    def reads(self) -> bool:
        """True if the tensor is an input of the graph."""
        return self.role is Role.INPUT or self.access in (Access.READ, Access.READ_WRITE)

    @property
    def writes(self) -> bool:
        """True if the graph gives the tensor a new value."""
        return self.role is Role.OUTPUT or self.access in (Access.WRITE, Access.READ_WRITE)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as a ``torch.dtype``."""
        return DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    @property
    def component_shape(self) -> tuple[int, ...]:
        """The component's shape: its order of axes, without the padding of slots."""
        axes = range(len(self.shape)) if self.axes is None else self.axes
        shape = [size for _, size in sorted(zip(axes, self.shape, strict=True))]
        if self.rounding is not None and self.rounding.padding:
            shape[1] -= self.rounding.padding
        return tuple(shape)

    def rearranged(self, axes: tuple[int, ...]) -> Self:
        """Returns the state of an engine that has the component's axes in this order."""
        if self.axes is not None:
            raise ValueError(f"{self.name} already has its axes in another order")
        return replace(self, shape=tuple(self.shape[axis] for axis in axes), axes=axes)

    def original(self, state: Tensor) -> Tensor:
        """Returns a view of an engine's state with the component's order of axes."""
        if self.axes is None:
            return state
        return state.permute([self.axes.index(axis) for axis in range(len(self.axes))])

    def ordered(self, state: Tensor) -> Tensor:
        """Returns an engine's state in the component's order of axes and slots, without padding."""
        if self.rounding is None or not self.rounding.reordered:
            return self.original(state)
        numbers = self.original(state.view(torch.int8))
        slots = torch.arange(self.component_shape[1], device=numbers.device)
        return numbers[:, stored_at(slots)].view(state.dtype)

    def dequantize(self, state: Tensor, weight: Callable[[str], Tensor]) -> Tensor:
        """Returns the values of an engine's state, with the component's order of axes.

        Slots that were never written are zeros.

        Args:
            state: the engine's tensor.
            weight: returns a weight by its name.
        """
        if self.rounding is None:
            return self.original(state)
        quantized = self.ordered(state).float()
        values = quantized * weight(self.rounding.scale)[:, None]
        if self.rounding.mean is not None:
            written = quantized.flatten(2).any(2)[..., None, None]
            values = torch.where(written, values + weight(self.rounding.mean), 0.0)
        return values

    def to_json(self) -> dict[str, Any]:
        """Returns the tensor as plain JSON values."""
        value: dict[str, Any] = {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "role": self.role.value,
        }
        if self.access is not None:
            value |= {"access": self.access.value, "in_place": self.in_place}
        if self.axes is not None:
            value["axes"] = list(self.axes)
        if self.rounding is not None:
            rounding = asdict(self.rounding)
            # Absent where it is 0: earlier versions read such a bundle too.
            value["rounding"] = {k: v for k, v in rounding.items() if k != "padding" or v}
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError for malformed values."""
        access, axes = value.get("access"), value.get("axes")
        rounding = value.get("rounding")
        return cls(
            name=value["name"],
            shape=tuple(value["shape"]),
            dtype=value["dtype"],
            role=Role(value["role"]),
            access=None if access is None else Access(access),
            in_place=value.get("in_place", False),
            axes=None if axes is None else tuple(axes),
            rounding=None if rounding is None else Rounding(**rounding),
        )


def state_output(name: str) -> str:
    """Returns the name of the functional graph's output with a state's new value."""
    return f"{name}.out"


@dataclass(frozen=True)
class Signature:
    """The tensors of a component: the arguments of its forward in order, then its outputs.

    Weights are not listed; the graph names them ``<weights file>.<key>``.
    """

    tensors: tuple[TensorSpec, ...]

    def __iter__(self) -> Iterator[TensorSpec]:
        return iter(self.tensors)

    def __getitem__(self, name: str) -> TensorSpec:
        for tensor in self.tensors:
            if tensor.name == name:
                return tensor
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        return any(tensor.name == name for tensor in self.tensors)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Tensors of role input."""
        return tuple(t for t in self.tensors if t.role is Role.INPUT)

    @property
    def states(self) -> tuple[TensorSpec, ...]:
        """Tensors of role state."""
        return tuple(t for t in self.tensors if t.role is Role.STATE)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Tensors of role output."""
        return tuple(t for t in self.tensors if t.role is Role.OUTPUT)

    @property
    def arguments(self) -> tuple[TensorSpec, ...]:
        """Arguments of an in-place forward: inputs and states, in order."""
        return tuple(t for t in self.tensors if t.role in (Role.INPUT, Role.STATE))

    def graph_inputs(self) -> tuple[str, ...]:
        """Returns the names of a functional graph's inputs."""
        return tuple(t.name for t in self.tensors if t.reads)

    def graph_outputs(self) -> tuple[str, ...]:
        """Returns the names of a functional graph's outputs, then of its new states."""
        return (
            *(t.name for t in self.outputs),
            *(state_output(t.name) for t in self.states if t.writes),
        )

    def with_in_place(self, names: frozenset[str]) -> Self:
        """Returns the signature of an engine that writes these states in place."""
        return replace(
            self,
            tensors=tuple(
                replace(t, in_place=t.name in names) if t.role is Role.STATE else t
                for t in self.tensors
            ),
        )

    def to_json(self) -> list[dict[str, Any]]:
        """Returns the signature as plain JSON values."""
        return [tensor.to_json() for tensor in self.tensors]

    @classmethod
    def from_json(cls, value: list[dict[str, Any]]) -> Self:
        """Inverse of ``to_json``."""
        return cls(tuple(TensorSpec.from_json(item) for item in value))
