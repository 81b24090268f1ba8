"""Reader of pickled state dicts that runs nothing of them.

A pickle is a program. This reader interprets the instructions that PyTorch writes for state dicts
and calls nothing that the pickle names. A tensor becomes a ``PickledTensor``: its dtype, shape and
place in a storage. Other classes and functions are refused. Memory stays within a small multiple of
the pickle's own size.
"""

import math
import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO

import torch

_MAX_AXES = 64
_MAX_COUNT = 2**63
_STORAGES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": None,
}
_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2, *filter(None, _STORAGES.values()))


class RefusedError(Exception):
    """A pickle holds something that state dicts do not; the message names it."""


class MalformedError(Exception):
    """A pickle that PyTorch did not write, or a damaged one."""


@dataclass(frozen=True)
class Storage:
    """A storage: elements that tensors view, in one member of the archive.

    Attributes:
        key: name of the member.
        elements: number of elements.
        dtype: dtype of the elements; None for bytes.
    """

    key: str
    elements: int
    dtype: torch.dtype | None

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.elements * (1 if self.dtype is None else self.dtype.itemsize)


@dataclass(frozen=True)
class PickledTensor:
    """Tensor in a storage; offset, shape and strides count elements of ``dtype``."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def end(self) -> int:
        """One past its last element in the storage."""
        if 0 in self.shape:
            return self.offset
        steps = zip(self.shape, self.strides, strict=True)
        return self.offset + sum((size - 1) * stride for size, stride in steps) + 1


class _Dict(dict[Any, Any]):
    """Dict that refuses repeated keys; created empty."""

    def __init__(self) -> None:
        super().__init__()

    def add(self, key: Any, value: Any) -> None:
        # Hashing deeply nested tuples can take forever.
        if not isinstance(key, str | int | float | None):
            raise MalformedError(f"a {type(key).__name__} as a key")
        if key in self:
            raise MalformedError(f"it holds {str(key)[:80]!r} twice")
        self[key] = value


@dataclass(frozen=True)
class _Named:
    """A class or function that the pickle may name, and what replaces a call of it."""

    name: str
    make: Callable[..., Any]


def unpickle(file: BinaryIO) -> tuple[Any, dict[str, Storage]]:
    """Interprets one pickle.

    Args:
        file: positioned at the pickle's start, and afterwards at its end.

    Returns:
        The value, made of dicts, lists, tuples, plain values and ``PickledTensor``, and the
        storages by key.

    Raises:
        RefusedError: a class, function or instruction that no state dict needs.
        MalformedError: the pickle is damaged.
    """
    machine = _Machine()
    try:
        for code, argument, _ in pickletools.genops(file):
            machine.run(code.name, argument)
        (value,) = machine.stack
    except (RefusedError, MalformedError):
        raise
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise MalformedError(f"{type(error).__name__}: {error}") from error
    return value, machine.storages


class _Machine:
    """Interpreter of a pickle: its stack, marks and memo."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.storages: dict[str, Storage] = {}
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def run(self, name: str, argument: Any) -> None:
        if name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]() if argument is None else argument)
        elif name in ("BINPUT", "LONG_BINPUT"):
            self._memo[argument] = self.stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            self.stack.append(self._memo[argument])
        elif name == "MEMOIZE":
            self._memo[len(self._memo)] = self.stack[-1]
        elif name == "MARK":
            self._marks.append(len(self.stack))
        elif name in _STEPS:
            _STEPS[name](self, argument)
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise RefusedError(f"the instruction {name}")

    def pop(self, kind: type) -> Any:
        value = self.stack.pop()
        if not isinstance(value, kind):
            raise MalformedError(f"{type(value).__name__} in place of {kind.__name__}")
        return value

    def run_of(self) -> list[Any]:
        """Takes the values since the last mark off the stack and returns them."""
        at = self._marks.pop()
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def append(self, values: list[Any]) -> None:
        self._top(list).extend(values)

    def set_items(self, values: list[Any]) -> None:
        target = self._top(_Dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            target.add(key, value)

    def _top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise MalformedError(f"there is no {kind.__name__} to fill")
        return self.stack[-1]

    def tuple_of(self, count: int) -> None:
        values = [self.stack.pop() for _ in range(count)][::-1]
        self.stack.append(tuple(values))

    def name(self, words: str) -> None:
        found = _NAMES.get(words)
        if found is None:
            raise RefusedError(words.replace(" ", "."))
        self.stack.append(found if isinstance(found, torch.dtype) else _Named(words, found))

    def call(self) -> None:
        arguments, named = self.pop(tuple), self.pop(_Named)
        self.stack.append(named.make(*arguments))

    def persistent(self) -> None:
        kind, named, key, _, elements, *view = self.pop(tuple)
        if kind != "storage" or not isinstance(named, _Named) or not isinstance(key, str):
            raise MalformedError("a persistent value that is no storage")
        if view not in ([], [None]):
            raise RefusedError("a view of a storage")
        dtype = _STORAGES[named.name.rpartition(" ")[2]]
        storage = Storage(key, _count(elements), dtype)
        if self.storages.setdefault(key, storage) != storage:
            raise MalformedError(f"two storages have the key {key[:80]!r}")
        self.stack.append(storage)


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _MAX_COUNT:
        raise MalformedError(f"a {type(value).__name__} that is no number of elements")
    return value


def _counts(values: Any) -> tuple[int, ...]:
    if len(values) > _MAX_AXES:
        raise MalformedError(f"a tensor of {len(values)} axes")
    return tuple(map(_count, values))


def _tensor(
    storage: Any, offset: Any, shape: Any, strides: Any, grad: Any, hooks: Any, *rest: Any
) -> PickledTensor:
    """Returns a tensor; ``rest`` may begin with its dtype, which a storage of bytes lacks."""
    dtype = rest[0] if rest and isinstance(rest[0], torch.dtype) else storage.dtype
    if not isinstance(storage, Storage) or dtype is None:
        raise MalformedError("a tensor without a storage or a dtype")
    tensor = PickledTensor(storage, dtype, _count(offset), _counts(shape), _counts(strides))
    if max(tensor.end, math.prod(tensor.shape)) * dtype.itemsize > storage.nbytes:
        what = f"a tensor {list(tensor.shape)} of {dtype}"
        raise MalformedError(f"{what} in a storage of {storage.nbytes} bytes")
    return tensor


def _not_called(*_: Any) -> Any:
    raise RefusedError("a call of a class of storages")


_CONSTANTS: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINSTRING"),
            *("SHORT_BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "BINBYTES", "SHORT_BINBYTES"),
        ),
        lambda: None,
    ),
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": _Dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": list,
}
_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.run_of())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.run_of()),
    "ADDITEMS": lambda machine, _: machine.append(machine.run_of()),
    "SETITEM": lambda machine, _: machine.set_items([machine.stack.pop() for _ in "kv"][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.run_of()),
    "GLOBAL": lambda machine, words: machine.name(words),
    "STACK_GLOBAL": lambda machine, _: machine.name(
        " ".join([machine.pop(str) for _ in "mn"][::-1])
    ),
    "REDUCE": lambda machine, _: machine.call(),
    # Drops attributes of a dict, such as versions of the modules.
    "BUILD": lambda machine, _: machine.stack.pop() and None,
    "BINPERSID": lambda machine, _: machine.persistent(),
}
_NAMES: dict[str, Any] = {
    "collections OrderedDict": _Dict,
    # Does not copy: a short pickle could ask for copies again and again.
    "__builtin__ set": lambda items: items,
    "torch Size": lambda sizes: _counts(sizes),
    "torch device": lambda *words: words[:2],
    "_codecs encode": lambda text, *_: text,
    "torch._utils _rebuild_tensor_v2": _tensor,
    "torch._utils _rebuild_tensor_v3": _tensor,
    "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
    **{f"torch {name}": _not_called for name in _STORAGES},
    **{str(dtype).replace(".", " "): dtype for dtype in _DTYPES},
    "torch.storage UntypedStorage": _not_called,
}
