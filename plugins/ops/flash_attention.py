"""Operator ``flash_attention_sm90``: ``ring_attention`` by a precompiled kernel.

The kernel is FlashAttention-4's for sm_90: a cubin with a JSON file of its launch parameters.
``load_kernel`` loads it for the operator, and a variant of it for ``padded_attention_sm90``.
"""

import ctypes
import json
import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from vidc.plugins.arguments import Checks
from vidc.plugins.cuda_driver import Kernel, TensorMap
from vidc.plugins.definition import define_composite
from vidc.plugins.errors import GateError, UnavailableError
from vidc.plugins.ops.key_split import half_lengths, merge_halves, split_from
from vidc.plugins.ops.ring import check_attention
from vidc.plugins.signature import DTYPE_NAMES, DTYPES

OPERATOR = "flash_attention_sm90"
_CHECKS = Checks(OPERATOR)

DTYPES_SM90 = (torch.bfloat16, torch.float16)
_ALIGNMENT = 16
_BOX_BYTES = 128
"""Bytes of a row in one copy: the width of the swizzle."""


@dataclass(frozen=True)
class LaunchFacts:
    """Launch parameters of a compiled kernel.

    ``parameter_bytes`` has the sizes of the kernel's parameters. The fields from ``sizes`` on are
    indices of the parameters that the kernel reads. ``sizes``: numbers of queries, heads and batch
    rows. ``lengths``: numbers of keys, int32 ``[B]``, and B. ``logsumexp``: float32 ``[B, H, T]``
    with sizes and strides. ``query`` to ``output``: tensor maps. ``scale``: float32 factor of the
    logits, for base 2. A kernel that merges padding has the factor for base e as ``scale``, and
    reads two more: ``log2e``, log2(e), and ``capacity``, the number of keys with padding.
    """

    symbol: str
    dtype: str
    head_dim: int
    capability: tuple[int, ...]
    """Compute capability of the GPU, major and minor."""
    tile_m: int
    """Queries of a thread block."""
    tile_n: int
    """Keys and values of one copy."""
    threads: int
    shared_bytes: int
    parameter_bytes: tuple[int, ...]
    sizes: int
    lengths: int
    logsumexp: int
    query: int
    key: int
    value: int
    output: int
    scale: int
    log2e: int | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        sizes = (self.head_dim, self.tile_m, self.tile_n, self.threads, self.shared_bytes)
        numbers = (*sizes, *self.capability, *self.parameter_bytes, *self._indices)
        if not all(type(number) is int for number in numbers):
            raise TypeError("a size is not an integer")
        if not all(size > 0 for size in (*sizes, *self.parameter_bytes)):
            raise ValueError("a size is not positive")
        if not set(self._indices) <= set(range(len(self.parameter_bytes))):
            raise ValueError("an index is out of range")
        if len(set(self._indices)) != len(self._indices):
            raise ValueError("two indices are equal")
        if DTYPES[self.dtype] not in DTYPES_SM90 or not isinstance(self.symbol, str):
            raise ValueError("the dtype or the symbol is invalid")
        if (self.log2e is None) != (self.capacity is None):
            raise ValueError("one index of a kernel that merges padding is missing")

    @property
    def merges_padding(self) -> bool:
        """True for a kernel of ``padded_attention_sm90``."""
        return self.capacity is not None

    @property
    def _indices(self) -> tuple[int, ...]:
        tensors = (self.query, self.key, self.value, self.output)
        padding = () if self.capacity is None else (self.log2e, self.capacity)
        return (self.sizes, self.lengths, self.logsumexp, *tensors, self.scale, *padding)

    def to_json(self) -> dict[str, Any]:
        """Returns the facts as plain JSON values."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """Inverse of ``to_json``; raises KeyError, TypeError or ValueError for malformed values."""
        lists = {name: tuple(values[name]) for name in ("capability", "parameter_bytes")}
        return cls(**{**values, **lists})


@dataclass(frozen=True)
class _Loaded:
    kernel: Kernel
    facts: LaunchFacts
    code: bytes
    processors: int


_LOADED: dict[tuple[torch.dtype, int, torch.device, bool], _Loaded] = {}
"""Loaded kernels by dtype, head size, device, and True for a kernel that merges padding."""


def load_kernel(
    cubin: Path, facts: Path | None = None, device: torch.device | int | None = None
) -> None:
    """Loads a kernel on a device for its operator, for the life of the process.

    The operator itself loads nothing, so its first run may be captured in a CUDA graph. Loading an
    equal kernel again does nothing.

    Args:
        cubin: file of the kernel's code.
        facts: JSON file of its launch parameters; None for the cubin's path with suffix ``.json``.
        device: a CUDA device, the current one if None.

    Raises:
        UnavailableError: ``VIDC-KERNEL-GPU``, the kernel is for another GPU;
            ``VIDC-KERNEL-DRIVER``.
        GateError: ``VIDC-KERNEL-FACTS``, a file is missing or malformed.
    """
    read, code = _read(cubin, cubin.with_suffix(".json") if facts is None else facts)
    index = _device_index(device)
    capability = torch.cuda.get_device_capability(index)
    if capability != read.capability:
        built, found = (".".join(map(str, pair)) for pair in (read.capability, capability))
        raise UnavailableError(
            "VIDC-KERNEL-GPU",
            f"{cubin.name} is for GPUs of compute capability {built}, this one has {found}",
            "use a bundle that was built for this GPU",
        )
    key = (DTYPES[read.dtype], read.head_dim, torch.device("cuda", index), read.merges_padding)
    loaded = _LOADED.get(key)
    if loaded is None or (loaded.code, loaded.facts) != (code, read):
        kernel = Kernel(code, read.symbol, read.shared_bytes, index)
        processors = torch.cuda.get_device_properties(index).multi_processor_count
        _LOADED[key] = _Loaded(kernel, read, code, processors)


def _read(cubin: Path, facts: Path) -> tuple[LaunchFacts, bytes]:
    try:
        return LaunchFacts.from_json(json.loads(facts.read_text())), cubin.read_bytes()
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise GateError(
            "VIDC-KERNEL-FACTS",
            f"{cubin.name} cannot be loaded with {facts.name}: {error!r}",
            "build the bundle again with this version of vidc",
        ) from error


def _device_index(device: torch.device | int | None) -> int:
    if not torch.cuda.is_available():
        raise UnavailableError(
            "VIDC-KERNEL-DRIVER",
            "PyTorch finds no CUDA device to load the kernel on",
            "use a machine with an NVIDIA GPU, and a build of PyTorch for CUDA",
        )
    index = device.index if isinstance(device, torch.device) else device
    return torch.cuda.current_device() if index is None else index


def _check(query: Tensor, key: Tensor, value: Tensor, valid_length: Tensor) -> None:
    _CHECKS.dtype("query", query, DTYPES_SM90)
    check_attention(_CHECKS, query, key, value, valid_length, ("key", "value"))


def check_memory(
    checks: Checks, query: Tensor, key: Tensor, value: Tensor, name: str, lengths: Tensor
) -> None:
    """Refuses tensors that the kernels cannot read where they are.

    Args:
        checks: of the operator.
        query: must be contiguous and aligned to 16 bytes, like the next two.
        key: must be on the device of ``query``.
        value: must be on the device of ``query``.
        name: the operator's name for ``lengths``.
        lengths: must be on the device of ``query``.
    """
    for each, tensor in (("query", query), ("key", key), ("value", value)):
        strides = f"strides {tensor.stride()}"
        checks.that(tensor.is_contiguous(), each, "a contiguous tensor", strides)
        address = tensor.data_ptr()
        aligned = f"memory aligned to {_ALIGNMENT} bytes"
        checks.that(address % _ALIGNMENT == 0, each, aligned, hex(address))
    for each, tensor in (("key", key), ("value", value), (name, lengths)):
        device = query.device
        checks.that(tensor.device == device, each, f"query's device {device}", tensor.device)


def find_kernel(operator: str, query: Tensor, *, merges_padding: bool = False) -> _Loaded:
    """Returns the loaded kernel of an operator for queries ``[B, T, H, D]``.

    Raises:
        UnavailableError: ``VIDC-KERNEL-MISSING``.
    """
    head_dim = query.shape[3]
    loaded = _LOADED.get((query.dtype, head_dim, query.device, merges_padding))
    if loaded is None:
        known = sorted(
            f"{DTYPE_NAMES[dtype]} x {size} on {where}"
            for dtype, size, where, merges in _LOADED
            if merges is merges_padding
        )
        raise UnavailableError(
            "VIDC-KERNEL-MISSING",
            f"vidc::{operator}: query: expected a dtype, head size and device with a loaded kernel "
            f"({', '.join(known) or 'none is loaded'}), "
            f"found {DTYPE_NAMES[query.dtype]} x {head_dim} on {query.device}",
            "run an engine of a bundle for this GPU, or load the kernel with "
            "vidc.plugins.ops.flash_attention.load_kernel",
        )
    return loaded


@lru_cache(maxsize=1024)
def _tensor_map(
    address: int, dtype: torch.dtype, batch: int, rows: int, heads: int, head_dim: int, tile: int
) -> TensorMap:
    """Returns the TMA map of a contiguous ``[batch, rows, heads, head_dim]``, copied by tiles."""
    item = dtype.itemsize
    row = heads * head_dim * item
    return TensorMap(
        address,
        dtype,
        sizes=(head_dim, rows, heads, batch),
        strides=(row, head_dim * item, rows * row),
        box=(_BOX_BYTES // item, tile, 1, 1),
    )


class _Sizes(ctypes.Structure):
    _fields_ = (
        ("queries", ctypes.c_int32),
        ("heads", ctypes.c_int32),
        ("batch", ctypes.c_int32),
    )


class _Lengths(ctypes.Structure):
    """Kernel argument of an int32 tensor ``[B]``."""

    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_int64))


class _LogSumExp(ctypes.Structure):
    """Kernel argument of a float32 tensor ``[B, H, T]`` with a last stride of 1."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("sizes", _Sizes),
        ("head_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
    )


def attend(
    loaded: _Loaded,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lengths: Tensor,
    tiles: int,
) -> Tensor:
    """Runs a kernel on the first tiles of queries; returns their logsumexp, ``[B, H, T]``.

    Args:
        loaded: the kernel.
        query: ``[B, T, H, D]``.
        key: ``[B, S, H, D]``.
        value: ``[B, S, H, D]``.
        output: ``[B, T, H, D]``, written.
        lengths: number of keys of each sample that are read, int32 ``[B]``.
        tiles: number of tiles.
    """
    facts = loaded.facts
    batch, tokens, heads, head_dim = query.shape
    slots = key.shape[1]
    logsumexp = torch.empty(batch, heads, tokens, dtype=torch.float32, device=query.device)
    shape = (batch, slots, heads, head_dim)
    maps = {
        facts.query: _tensor_map(query.data_ptr(), query.dtype, *query.shape, facts.tile_m),
        facts.key: _tensor_map(key.data_ptr(), key.dtype, *shape, facts.tile_n),
        facts.value: _tensor_map(value.data_ptr(), value.dtype, *shape, facts.tile_n),
        facts.output: _tensor_map(output.data_ptr(), output.dtype, *query.shape, facts.tile_m),
    }
    sizes, log2e = _Sizes(tokens, heads, batch), math.log2(math.e)
    base = 1.0 if facts.merges_padding else log2e
    values: dict[int, ctypes._CDataType] = {
        facts.sizes: sizes,
        facts.lengths: _Lengths(lengths.data_ptr(), batch),
        facts.logsumexp: _LogSumExp(logsumexp.data_ptr(), sizes, tokens, heads * tokens),
        facts.scale: ctypes.c_float(base / math.sqrt(head_dim)),
    }
    if facts.log2e is not None and facts.capacity is not None:
        values |= {facts.log2e: ctypes.c_float(log2e), facts.capacity: ctypes.c_int32(slots)}
    unread = (ctypes.c_char * max(facts.parameter_bytes))()
    parameters = [ctypes.addressof(unread)] * len(facts.parameter_bytes)
    for index, value_of in values.items():
        parameters[index] = ctypes.addressof(value_of)
    for index, tensor_map in maps.items():
        parameters[index] = tensor_map.address
    loaded.kernel.launch((tiles, heads, batch), facts.threads, parameters)
    return logsumexp


def flash_attention(query: Tensor, key: Tensor, value: Tensor, valid_length: Tensor) -> Tensor:
    """Softmax attention of a block's queries over the valid slots of a ring.

    The kernel reads ``valid_length`` on the device, so one CUDA graph serves every length. The
    result is undefined if it is not from 1 to ``S``. Later slots are masked, but their values must
    be finite, because the kernel multiplies some by 0: those up to the next multiple of its tile
    and, if keys are split in two halves, those of an empty half. A session's caches start as zeros.

    Args:
        query: ``[B, T, H, D]``, bfloat16 or float16, contiguous, on a CUDA device.
        key: ``[B, S, H, D]``, the same dtype.
        value: ``[B, S, H, D]``, the same dtype.
        valid_length: number of valid slots from the first on, int64 ``[1]``.

    Returns:
        ``[B, T, H, D]``, scaled by ``1/sqrt(D)`` before the softmax.

    Raises:
        UsageError: ``VIDC-KERNEL-ARGUMENT``.
        UnavailableError: ``VIDC-KERNEL-MISSING``, no kernel is loaded for this dtype, head size and
            device.
    """
    _check(query, key, value, valid_length)
    check_memory(_CHECKS, query, key, value, "valid_length", valid_length)
    loaded = find_kernel(OPERATOR, query)
    batch, tokens, heads, head_dim = query.shape
    tiles = -(-tokens // loaded.facts.tile_m)
    slots = key.shape[1]
    first = split_from(tiles, batch * heads, slots, loaded.processors)
    output = torch.empty_like(query)
    if first:
        lengths = valid_length.expand(batch).to(torch.int32, memory_format=torch.contiguous_format)
        attend(loaded, query, key, value, output, lengths, first)
    if first < tiles:
        done, half = first * loaded.facts.tile_m, slots // 2
        # Copies even one row: expand and flatten would return a view of stride 0.
        rest = query[:, done:].repeat_interleave(2, dim=0)
        keys, values = (ring.view(2 * batch, half, heads, head_dim) for ring in (key, value))
        parts = torch.empty_like(rest)
        lengths = half_lengths(valid_length, half, batch)
        logsumexp = attend(loaded, rest, keys, values, parts, lengths, tiles - first)
        both = (batch, 2)
        output[:, done:] = merge_halves(
            parts.unflatten(0, both), logsumexp.unflatten(0, both), valid_length, half
        )
    return output


def _fake(query: Tensor, key: Tensor, value: Tensor, valid_length: Tensor) -> Tensor:
    _check(query, key, value, valid_length)
    return torch.empty_like(query, memory_format=torch.contiguous_format)


flash_attention_sm90 = define_composite(
    f"{OPERATOR}(Tensor query, Tensor key, Tensor value, Tensor valid_length) -> Tensor",
    flash_attention,
    _fake,
)
