"""Writing one safetensors file tensor by tensor, at offsets that are known before the data."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import torch

from vidc.exporters.checkpoint.lazy import LazyTensor
from vidc.exporters.checkpoint.safetensors_file import DTYPES

_DTYPE_CODES = {dtype: code for code, dtype in DTYPES.items()}


class Described(Protocol):
    """Anything with a shape and a dtype: a tensor on any device, also meta, or a lazy one."""

    @property
    def shape(self) -> Sequence[int]:
        """Its sizes."""

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype."""


@dataclass(frozen=True)
class Placement:
    """Place of a tensor in a weights file: ``nbytes`` bytes from byte ``offset`` of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    nbytes: int


def weight_layout(tensors: Mapping[str, Described]) -> dict[str, Placement]:
    """Returns the place where ``write_weights`` puts each tensor, in the order of the file.

    Wide dtypes come first, so every tensor is aligned to its element size, and the data start at
    a multiple of 8 bytes.
    """
    return _arrange(tensors)[1]


def write_weights(path: Path, tensors: Mapping[str, LazyTensor]) -> None:
    """Writes a safetensors file that holds no more than one tensor in memory at a time.

    The same tensors give the same bytes. On return the file is on the disk; after an error it may
    be incomplete, so write into a folder that is published as a whole.
    """
    header, placements = _arrange(tensors)
    with path.open("wb") as file:
        file.write(header)
        for name, placement in placements.items():
            _append(file, name, tensors[name], placement)
        file.flush()
        os.fsync(file.fileno())


def _append(file: BinaryIO, name: str, tensor: LazyTensor, placement: Placement) -> None:
    data = tensor.load().contiguous().reshape(-1).view(torch.uint8)
    if data.numel() != placement.nbytes:
        raise ValueError(f"{name} loads {data.numel()} bytes, but announces {placement.nbytes}")
    file.write(data.numpy().data)


def _arrange(tensors: Mapping[str, Described]) -> tuple[bytes, dict[str, Placement]]:
    """The file's header, its length included, and where the tensors come after it."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    ranges = {}
    end = 0
    for name in sorted(tensors, key=lambda name: (-tensors[name].dtype.itemsize, name)):
        tensor = tensors[name]
        begin, end = end, end + math.prod(tensor.shape) * tensor.dtype.itemsize
        entries[name] = {
            "dtype": _DTYPE_CODES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        ranges[name] = (begin, end)
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, {
        name: Placement(tensors[name].dtype, tuple(tensors[name].shape), start + begin, end - begin)
        for name, (begin, end) in ranges.items()
    }
