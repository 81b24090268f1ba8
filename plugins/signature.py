"""Signatures: the tensors a component or an engine takes, returns and keeps."""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, Self

import torch
from torch import Tensor

from vidc.plugins.transposed_values import stored_at

DTYPES: dict[str, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int8": torch.int8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Role(StrEnum):
    """What a tensor is to its component."""

    INPUT = "input"
    OUTPUT = "output"
    STATE = "state"
    """Read or written by the component, lives as long as a stream."""


class Access(StrEnum):
    """How a component uses a state."""

    READ = "read"
    WRITE = "write"
    """Overwritten whole, whatever it held before."""
    READ_WRITE = "read_write"


@dataclass(frozen=True)
class Rounding:
    """How a state in 8 bits stands for numbers, by the names of weights.

    Attributes:
        scale: of each head, float32 ``[H]``.
        mean: what numbers lack, float32 ``[H, D]``; None for nothing.
        reordered: whether slots are in the order of ``transposed_values.py``, not in their own.
    """

    scale: str
    mean: str | None = None
    reordered: bool = False


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a signature.

    ``access`` is set for states alone. ``in_place`` says that the engine writes the state in
    the memory it reads it from; a state that is written and not ``in_place`` comes back in a
    second buffer. ``axes`` names, for each axis of a state as the engine keeps it, the axis of the
    component's own; None where they are the same. ``rounding`` is of a ring in 8 bits.
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
            raise ValueError(f"{self.name}: states, and only states, have an access")
        if self.axes is not None and self.access is None:
            raise ValueError(f"{self.name}: only states are kept with their axes in another order")
        if self.axes is not None and sorted(self.axes) != [*range(len(self.shape))]:
            raise ValueError(f"{self.name}: {self.axes} is no order of {len(self.shape)} axes")

    @property
    def reads(self) -> bool:
        """Whether the graph takes this tensor in."""
        return self.role is Role.INPUT or self.access in (Access.READ, Access.READ_WRITE)

    @property
    def writes(self) -> bool:
        """Whether the graph gives this tensor a new value."""
        return self.role is Role.OUTPUT or self.access in (Access.WRITE, Access.READ_WRITE)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype as torch's object."""
        return DTYPES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return math.prod(self.shape) * self.torch_dtype.itemsize

    def rearranged(self, axes: tuple[int, ...]) -> Self:
        """A component's state as an engine keeps it that puts its axes in this order."""
        if self.axes is not None:
            raise ValueError(f"{self.name} has its axes in another order already")
        return replace(self, shape=tuple(self.shape[axis] for axis in axes), axes=axes)

    def original(self, kept: Tensor) -> Tensor:
        """A view of a kept state with the component's own order of axes."""
        if self.axes is None:
            return kept
        return kept.permute([self.axes.index(axis) for axis in range(len(self.axes))])

    def numbers(self, kept: Tensor, weight: Callable[[str], Tensor]) -> Tensor:
        """What a kept state stands for, with the component's own order of axes.

        Slots that nothing was written to are zeros.

        Args:
            kept: as the engine has it.
            weight: gives a weight by its name.
        """
        if self.rounding is None:
            return self.original(kept)
        numbers = self.original(kept.view(torch.int8)).contiguous()
        if self.rounding.reordered:
            slots = torch.arange(numbers.shape[1], device=numbers.device)
            numbers = numbers[:, stored_at(slots)]
        stored = numbers.view(kept.dtype).float()
        numbers = stored * weight(self.rounding.scale)[:, None]
        if self.rounding.mean is not None:
            written = stored.flatten(2).any(2)[..., None, None]
            numbers = torch.where(written, numbers + weight(self.rounding.mean), 0.0)
        return numbers

    def to_json(self) -> dict[str, Any]:
        """The tensor as plain JSON values."""
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
            value["rounding"] = asdict(self.rounding)
        return value

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError on anything else."""
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
    """The name of the graph output that carries a state's new value in a functional graph."""
    return f"{name}.out"


@dataclass(frozen=True)
class Signature:
    """The tensors of a component in the order of its forward's arguments, then its outputs.

    Weights are not listed: they are named in the graph as ``<weights file>.<key>``.
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
        """What an in-place forward takes: inputs and states, in order."""
        return tuple(t for t in self.tensors if t.role in (Role.INPUT, Role.STATE))

    def graph_inputs(self) -> tuple[str, ...]:
        """Names of a functional graph's inputs: what is read."""
        return tuple(t.name for t in self.tensors if t.reads)

    def graph_outputs(self) -> tuple[str, ...]:
        """Names of a functional graph's outputs: outputs, then the new value of each state."""
        return (
            *(t.name for t in self.outputs),
            *(state_output(t.name) for t in self.states if t.writes),
        )

    def with_in_place(self, names: frozenset[str]) -> Self:
        """The signature of an engine that writes these states in place."""
        return replace(
            self,
            tensors=tuple(
                replace(t, in_place=t.name in names) if t.role is Role.STATE else t
                for t in self.tensors
            ),
        )

    def to_json(self) -> list[dict[str, Any]]:
        """The signature as plain JSON values."""
        return [tensor.to_json() for tensor in self.tensors]

    @classmethod
    def from_json(cls, value: list[dict[str, Any]]) -> Self:
        """Inverse of ``to_json``."""
        return cls(tuple(TensorSpec.from_json(item) for item in value))
